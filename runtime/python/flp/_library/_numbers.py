"""The checks of numbers that stand before every call, whatever holds its arrays.

Invariants: a failure names the field, its value and what is accepted. Numbers are checked here as kernels get them, in
float32, by the rule of libflp (runtime/base/number.h): what float32 does not hold must not reach a C struct, where it
is 0 or infinite.
"""
import contextlib
import ctypes
import math
import numbers

from .. import errors
from . import _c

VOCAB_MAX = 2**30  # as libflp has it
INT32_MAX = 2**31 - 1
DETACHED = "detached"  # the entropy as a value without a gradient
LOG2E = math.log2(math.e)
# float32's least normal number, and the least that it rounds to infinity; both are named in messages by ACCEPTED_RANGE.
FLOAT32_LEAST, FLOAT32_BEYOND = 2.0**-126, 2.0**128 - 2.0**103
ACCEPTED_RANGE = "1.18e-38 to 3.4e38"
TAIL_LEAST, TAIL_MOST = 2.0**-20, 2.0**-2  # as libflp has it
ACCEPTED_TAIL = "None or 0, which are exact, or 2**-20 to 2**-2"


def refuse(kind, field, value, accepted):
    raise kind("%s is %s (accepted: %s)" % (field, value, accepted))


def refuse_type(field, value, accepted):
    refuse(TypeError, field, "of type " + type(value).__name__, accepted)


def refuse_dtype(field, array, accepted):
    refuse(TypeError, field, "of dtype %s" % array.dtype, accepted)


def refuse_shape(field, array, accepted):
    refuse(ValueError, field, "of shape %s" % (tuple(array.shape),), accepted)


@contextlib.contextmanager
def renaming(name_of):
    """What is refused inside begins with the name of a field, which becomes name_of(name)."""
    try:
        yield
    except (ValueError, TypeError) as error:
        field, space, rest = str(error).partition(" ")
        raise type(error)(name_of(field) + space + rest) from None


def mixed_of(mixed):
    """flp_mixed of an argument."""
    words = {None: _c.MIXED_NONE, "round": _c.MIXED_ROUND, "split": _c.MIXED_SPLIT}
    if not isinstance(mixed, (str, type(None))) or mixed not in words:
        refuse(ValueError, "mixed", repr(mixed), 'None, "round", "split"')
    return words[mixed]


def tail_of(tail):
    """What a backward pass may leave out of the scores' gradient; 0.0, which is exact, stands for None from here on."""
    if tail is None:
        return 0.0
    if not isinstance(tail, numbers.Real):
        refuse_type("tail", tail, ACCEPTED_TAIL)
    bound = float_of(tail)
    if bound != 0 and not TAIL_LEAST <= bound <= TAIL_MOST:
        refuse(ValueError, "tail", tail, ACCEPTED_TAIL)
    return bound


def entropy_of(value):
    """Whether a call gives the entropy, and whether that is a value without a gradient."""
    if isinstance(value, str) and value != DETACHED:
        refuse(ValueError, "entropy", repr(value), 'False, True or "%s"' % DETACHED)
    return bool(value), isinstance(value, str)


def number_of(field, value):
    """A number that float32 holds: 0 or a normal one."""
    number = double_of(field, value)
    if not fits(number):
        refuse(ValueError, field, value, "0, or magnitudes from " + ACCEPTED_RANGE)
    return number


def double_of(field, value):
    """A number for what takes float64."""
    if not isinstance(value, numbers.Real):
        refuse_type(field, value, "a finite number")
    if not math.isfinite(float_of(value)):
        refuse(ValueError, field, value, "a finite number")
    return float(value)


def fits(number):
    """Whether float32 holds a number as 0 or as a normal one."""
    return number == 0 or FLOAT32_LEAST <= abs(number) < FLOAT32_BEYOND


def scales_of(temperature, softcap, scale):
    """Checks a temperature, and what kernels make of it with softcap (0: none) and scale. As check_scales of libflp."""
    if not (temperature > 0 and fits(temperature)):
        refuse(errors.ArgumentError, "temperature", temperature, ACCEPTED_RANGE)
    if softcap and not (fits(scale / softcap) and fits(2 * scale / softcap)):
        refuse(ValueError, "scale", "%s while softcap is %s" % (scale, softcap),
               "0, or scales for which 2·scale/softcap is a normal number of float32")
    if not fits((softcap or scale) * LOG2E / temperature):
        refuse(errors.ArgumentError, "temperature", temperature, "values for which %s/T·log2(e) is a normal number of "
               "float32" % ("softcap" if softcap else "scale"))


def usable_rows(temperatures, unit):
    """Which temperatures of rows scales_of takes of a number. unit: (softcap or scale)·LOG2E; float32 arrays both"""
    sizes = abs(unit / temperatures)
    inside = (sizes >= FLOAT32_LEAST) & (sizes < math.inf) | (unit == 0)
    return (temperatures >= FLOAT32_LEAST) & (temperatures < math.inf) & inside


def float_of(number):
    """Infinity for what no float holds, such as 10**400."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


def integer_of(field, value):
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        refuse_type(field, value, "an integer")
    if not -2**63 <= value < 2**63:
        refuse(ValueError, field, value, "an integer of 64 bits")
    return int(value)


def within(field, value, least, most, accepted="%d to %d"):
    """An integer of a range that accepted words."""
    if not least <= integer_of(field, value) <= most:
        refuse(ValueError, field, value, accepted % (least, most))
    return int(value)


def softcap_of(softcap):
    """0.0 stands for none from here on; a given softcap must be above 0."""
    if softcap is None:
        return 0.0
    if number_of("softcap", softcap) <= 0:
        refuse(ValueError, "softcap", softcap, "None, or a finite number above 0")
    return float(softcap)


def budget_of(budget):
    """Bytes; 0 stands for the library's default. A text is read as that of FLP_BUDGET."""
    if isinstance(budget, str):
        return bytes_in("budget", budget)
    if not isinstance(budget, (numbers.Integral, type(None))):
        refuse_type("budget", budget, 'None, an integer, or a text such as "64M"')
    return count_of("budget", budget, "byte")


def bytes_in(field, text):
    """error: ArgumentError with what is accepted, in libflp's words"""
    found = ctypes.c_uint64()
    _c.call("flp_bytes_parse", field.encode(), text.encode(), 1, ctypes.byref(found))
    return found.value


def count_of(field, value, unit):
    """0 stands for None."""
    if value is None:
        return 0
    if integer_of(field, value) < 1:
        refuse(ValueError, field, value, "None, or at least 1 " + unit)
    return int(value)

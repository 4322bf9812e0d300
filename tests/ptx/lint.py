"""Rules of the PTX ISA for tensor memory, mbarriers and asynchronous copies that no value on the CPU shows: what has to
stand between two instructions on every path from the one to the other.

faults(ptx) follows each entry from instruction to instruction with what has begun, and has not ended, on some path to
there; where paths meet, that is what any of them has. A predicated instruction may be skipped, so it ends nothing. What
begins where a value of an entry's first block, such as the number of the warp, is equal to another one is gone on ways
where it is not, and the other way round.
"""
import re
from collections import defaultdict
from typing import NamedTuple

# Named barriers, 1 to 15, order shared memory among some warps. Tensor memory is handed on by mbarriers and by barriers
# of all threads.
BARRIER = r"bar(rier)?(\.cta)?\.sync(\.aligned)? 0"
WAIT = rf"mbarrier\.(test|try)_wait|{BARRIER}|barrier\.cluster\.wait"
TELL = rf"mbarrier\.arrive|{BARRIER}|barrier\.cluster\.arrive"
END = r"(ret|exit)$"


class Rule(NamedTuple):
    """says: what has to stand where. begins, ends, breaks: the instructions between which it has to stand, breaks the
    later ones, and itself, as re.match takes them. of_registers: naming a register that the first one writes breaks it
    too"""
    says: str
    begins: str
    ends: str
    breaks: str
    of_registers: bool = False


RULES = {
    "after": Rule("tcgen05.fence::after_thread_sync between a wait for other threads and tensor memory",
                  WAIT, r"tcgen05\.fence::after", r"tcgen05\.(mma|ld|st|cp|shift|commit|dealloc)\b"),
    "before": Rule("tcgen05.fence::before_thread_sync between tensor memory and what tells other threads",
                   r"tcgen05\.(alloc|ld|st)\b", r"tcgen05\.fence::before", TELL),
    "warp": Rule("bar.warp.sync between tcgen05.fence::before_thread_sync and the arrival of one lane for its warp",
                 r"tcgen05\.fence::before", rf"bar\.warp\.sync|{BARRIER}|barrier\.cluster\.arrive",
                 r"mbarrier\.arrive"),
    "wait": Rule("tcgen05.wait::ld between tcgen05.ld and the use of its registers, or what tells other threads",
                 r"tcgen05\.ld\b", r"tcgen05\.wait::ld", rf"tcgen05\.(fence::before|dealloc)|{TELL}|{END}", True),
    "commit": Rule("tcgen05.commit between products and what tells other threads",
                   r"tcgen05\.(mma|cp|shift)\b", r"tcgen05\.commit", f"{TELL}|{END}"),
    "dealloc": Rule("tcgen05.dealloc between tcgen05.alloc and the end", r"tcgen05\.alloc", r"tcgen05\.dealloc", END),
    "relinquish": Rule("tcgen05.relinquish_alloc_permit between tcgen05.alloc and what tells other threads",
                       r"tcgen05\.alloc", r"tcgen05\.relinquish_alloc_permit", f"{TELL}|{END}"),
    "mbarrier": Rule("fence.mbarrier_init between mbarrier.init and what tells other threads",
                     r"mbarrier\.init", r"fence\.mbarrier_init", f"{TELL}|{END}"),
    # Single words are what threads tell each other. Copies and products read what is stored as vectors or matrices.
    "proxy": Rule("fence.proxy.async between stores to shared memory and tensor copies or products of tcgen05",
                  r"st\.shared(\.\w+)*\.v[24]|stmatrix", r"fence\.proxy\.async",
                  r"cp\.async\.bulk\.tensor|tcgen05\.(mma|cp)\b"),
}
OF_RULES = re.compile("|".join(part for rule in RULES.values() for part in rule[1:4]))


class Begun(NamedTuple):
    """registers: that may not be named; given: comparisons and their results, without which it has not begun"""
    rule: str
    registers: frozenset
    given: frozenset


class State(NamedTuple):
    """What has begun on paths to here, and the results (what is compared, whether it is equal) that are possible."""
    begun: frozenset = frozenset()
    results: frozenset = frozenset()

    def known(self):
        return frozenset((what, is_so) for what, is_so in self.results if (what, not is_so) not in self.results)

    def with_result(self, what, is_so):
        """The state on a way that is taken if a comparison has this result."""
        other = (what, not is_so)
        return State(frozenset(b for b in self.begun if other not in b.given), self.results - {other})

    def joined(self, other):
        return State(self.begun | other.begun, self.results | other.results)


STATEMENT = re.compile(r"\s*(?:([$\w]+):(?!:)|([{}])|([^\s;{}](?:[^;{}]|\{[^{}]*\})*);)")


def instructions(body):
    """(text, number of the one that it branches to or None) of each. Braces of inline PTX have labels of their own."""
    code, labels, scopes = [], {}, [None]
    for label, brace, text in STATEMENT.findall(re.sub("//.*", "", body)):
        if brace:
            scopes = [*scopes, len(code)] if brace == "{" else scopes[:-1]
        elif label:
            labels[label, scopes[-1]] = len(code)
        elif not text.startswith("."):
            code.append((" ".join(text.split()), scopes))

    def target(text, scopes):
        assert "brx.idx" not in text, "tables of labels are not read"
        name = re.search(r"\bbra(?:\.uni)? (\S+)$", text)
        return name and next(labels[name[1], scope] for scope in reversed(scopes) if (name[1], scope) in labels)

    return [(text, target(text, scopes)) for text, scopes in code]


def comparisons(code):
    """Predicate -> (the two that it compares, whether it is true where they are equal), of those that compare values of
    the first block: the result is always the same."""
    branches = [(i, target) for i, (_, target) in enumerate(code) if target is not None]
    first = min(map(min, branches), default=0)
    written = defaultdict(list)
    for i, (text, _) in enumerate(code):
        for register in re.findall(r"^(?:@\S+ )?[\w.:]+ (%\w+)", text):
            written[register].append(i)

    def is_fixed(value):
        return not value.startswith("%") or len(written[value]) == 1 and written[value][0] < first

    found = {}
    for text, _ in code:
        compared = re.match(r"setp\.(eq|ne)\.[bsu]\d+ (\S+), (\S+), (\S+)$", text)
        if compared and len(written[compared[2]]) == 1 and is_fixed(compared[3]) and is_fixed(compared[4]):
            found[compared[2]] = compared.groups()[2:], compared[1] == "eq"
    return found


def step(state, text, is_sure):
    """(the state behind an instruction, rules that it breaks)"""
    registers = frozenset(re.findall(r"%\w+", text)) if any(b.registers for b in state.begun) else frozenset()
    if not registers and not OF_RULES.match(text):
        return state, set()
    broken = {b.rule for b in state.begun if re.match(RULES[b.rule].breaks, text) or b.registers & registers}
    ended = {b for b in state.begun if is_sure and re.match(RULES[b.rule].ends, text)}
    added = set()
    for name, rule in RULES.items():
        if re.match(rule.begins, text):
            written = re.findall(r"%\w+", text.partition("}")[0]) if rule.of_registers else ()
            added.add(Begun(name, frozenset(written), state.known()))
    return State(state.begun - ended | added, state.results), broken


def ways_on(i, text, target, state, compared):
    """(number of the instruction that may follow, the state there)"""
    is_not, name = re.match(r"(?:@(!?)(\S+))?", text).groups()
    what, is_true = compared.get(name, (None, True))
    is_equal = is_true != (is_not == "!")           # where the branch is taken
    if target is not None:
        yield target, state.with_result(what, is_equal)
        if name:
            yield i + 1, state.with_result(what, not is_equal)
    elif name or not re.match(END, text):
        yield i + 1, state


def entry_faults(body):
    """(rule, instruction that breaks it), in their order"""
    code = instructions(body)
    compared = comparisons(code)
    possible = frozenset((what, is_so) for what, _ in compared.values() for is_so in (True, False))
    states, found, left = {0: State(results=possible)}, set(), [0]
    while left:
        i = left.pop()
        text, target = code[i]
        predicate, done = re.match(r"(@\S+ )?(.*)", text).groups()
        behind, broken = step(states[i], done, not predicate)
        found |= {(i, rule, text) for rule in broken}
        for following, state in ways_on(i, text, target, behind, compared):
            joined = states[following].joined(state) if following in states else state
            if joined != states.get(following):
                states[following] = joined
                left.append(following)
    return [(rule, text) for _, rule, text in sorted(found)]


def faults(ptx):
    """(entry, rule, instruction that breaks it) of all entries"""
    return [(entry.split("(")[0], *fault) for entry in ptx.split(".entry ")[1:]
            for fault in entry_faults(entry.partition("\n{")[2])]

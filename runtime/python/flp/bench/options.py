"""The command line: what is accepted, what each option means, and errors that name field, value and accepted."""
import argparse
import functools
import math

import flp

from .._library import _numbers
from . import peers, sharp
from .cases import BETA, CROSS_ENTROPY, DIVERGE, DTYPES, ENTROPIES, GRADS, HEAD, LOSSES, OPS, SMOOTHING, TAIL, Z_LOSS

PROGRAM = "python -m flp.bench"

DESCRIPTION = """Times flp.linear_logprob beside the GEMM baselines of the same shapes and beside other libraries.

Everything runs on the same tensors, in one process, in bursts, interleaved in another random order each round. They
are random, or as --data says: rows as sharp as a trained model's, which the command flpgen makes.
Figures are medians over the rounds with the least and the most. A ratio is to the GEMM baselines of the same work: 1
for forward; for forward+backward the scores again and one for each gradient, whoever computes it; with --save, --loss
and --frozen the scores once; with --op diverge those of both heads. "ratio" is to the fastest of torch.matmul's
backends and of the eight algorithms that cuBLASLt's heuristics name first, "of first" to torch.matmul by the very
first.
Errors are the largest over a sample of rows, against fp64; those of gradients are relative to the largest element.
Memory is torch's peak above what was there before the call, results included."""

EPILOG = """examples:
  # scoring, against everything that is installed
  {program} --vocab 151936 --hidden 4096 --rows 1024,8192 --entropy none,forward
  # training: both gradients, and a frozen head; workspace of ours at most 1 GiB; keep the record
  {program} --vocab 151936 --hidden 4096 --grad hidden,weight --grad hidden --entropy none,backward --budget 1G \\
      --json peers.json
  # steps of GRPO with its divergence, gradients and loss in one call; the weight's gradient into an fp32 buffer
  {program} --vocab 151936 --hidden 4096 --grad hidden,weight --loss grpo+k3 --accumulate --budget 1.5G
  # steps of supervised fine-tuning, with label smoothing and z-loss, and without
  {program} --vocab 151936 --hidden 4096 --grad hidden,weight --loss cross_entropy,nll --budget 1.5G
  # exponentials saved from forward to backward (save mode)
  {program} --vocab 151936 --hidden 4096 --grad hidden,weight --save --budget 4G
  # a frozen head and any upstream gradient, in little memory
  {program} --vocab 151936 --hidden 4096 --frozen --budget 512M
  # rows of a reasoning model's own samples; beside flp also flp with gradients that may leave out 2^-9 of their sum
  {program} --vocab 151936 --hidden 4096 --grad hidden,weight --data policy --tail 2**-9 --peers cce,cce-filter,liger
  # the same of a step, and of a frozen head
  {program} --vocab 151936 --hidden 4096 --grad hidden,weight --loss grpo+k3 --data policy --tail 2**-9 --budget 1.5G
  {program} --vocab 151936 --hidden 4096 --frozen --data policy --tail 2**-9
  # divergences of a student's head from a teacher's, their mean with gradients; a frozen head that is both's
  {program} --op diverge --vocab 151936 --hidden 2048 --teacher-hidden 4096 --loss reverse_kl,jsd \\
      --grad hidden,weight --data policy --budget 1.5G
  {program} --op diverge --vocab 151936 --hidden 4096 --one-head --grad hidden --budget 1.5G
  # steps of GRPO with the exact divergence from a reference
  {program} --op diverge --vocab 151936 --hidden 2048 --teacher-hidden 4096 --policy grpo --grad hidden,weight
  # only two peers; all but one
  {program} --vocab 32768 --hidden 2048 --peers cce,verl
  {program} --vocab 32768 --hidden 2048 --peers=all,-quack
  # the whole path on the CPU, where only some peers run
  {program} --device cpu --vocab 256 --hidden 32 --rows 8 --burst-ms 1 --rounds 3

peers:
{peers}

peers of --op diverge:
{diverging}

A peer that is absent, cannot run a case, fails or takes too long is listed with the reason; the run goes on. If one
breaks the CUDA context, the command starts again without it (--skip). Exit status: 0 success, 2 bad usage, 3 no GPU,
library or memory for this, 4 the record cannot be written."""


def refuse(text, accepted):
    raise argparse.ArgumentTypeError("'%s' is not accepted; %s" % (text, accepted))


def of_kind(kind, is_taken, accepted):
    """What reads numbers of a kind, int or float, of which some are taken."""
    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            refuse(text, accepted)
        return value if is_taken(value) else refuse(text, accepted)

    return parse


def integer(least, most=2**63 - 1):
    return of_kind(int, lambda value: least <= value <= most,
                   "an integer from %d%s is" % (least, "" if most == 2**63 - 1 else " to %d" % most))


def depth(text):
    value = integer(8)(text)
    return value if value % 8 == 0 else refuse(text, "a multiple of 8 is")


def number(most=math.inf):
    return of_kind(float, lambda value: 0 < value <= most and math.isfinite(value),
                   "a number above 0%s is" % ("" if most == math.inf else " and at most %g" % most))


def size(text):
    """Bytes, as libflp reads FLP_BUDGET."""
    try:
        return _numbers.bytes_in("BYTES", text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def words(choices, accepted=None):
    """Distinct words of a list. accepted: how a refusal names the choices; None: all of them"""
    accepted = "any of %s, separated by commas, is" % (accepted or ", ".join(choices))

    def parse(text):
        chosen = [word.strip() for word in text.split(",")]
        wrong = [word for word in chosen if word not in choices]
        return refuse(wrong[0], accepted) if wrong else list(dict.fromkeys(chosen))

    return parse


# Rules, alone or with a term of divergence; or divergences of two heads.
losses_of = {
    HEAD: words([CROSS_ENTROPY, *(name + term for name in LOSSES for term in ("", "+k1", "+k2", "+k3"))],
                "%s, alone or with +k1, +k2 or +k3, or %s" % (", ".join(LOSSES), CROSS_ENTROPY)),
    DIVERGE: words(list(flp.losses.DIVERGENCES))}


def policy(text):
    """A rule, alone or with a term of divergence."""
    rule, is_more, term = text.partition("+")
    if rule in LOSSES and (not is_more or term in ("k1", "k2", "k3")):
        return text
    return refuse(text, "one of %s, alone or with +k1, +k2 or +k3, is" % ", ".join(LOSSES))


def tail(text):
    """A number, a quotient or a power: 0.002, 1/512, 2**-9 or 2^-9."""
    base, is_power, power = text.replace("**", "^").partition("^")
    over, is_quotient, under = base.partition("/")
    try:
        value = (float(over) / (float(under) if is_quotient else 1)) ** (float(power) if is_power else 1)
        if _numbers.TAIL_LEAST <= value <= _numbers.TAIL_MOST:
            return value
    except (ValueError, ArithmeticError, TypeError):  # TypeError: a power of a negative number is complex
        pass
    return refuse(text, "a number from 2^-20 to 2^-2 is, such as 2**-9, 1/512 or 0.002")


def integers(text):
    return list(dict.fromkeys(integer(1)(word) for word in text.split(",")))


def mask(text):
    return () if text == "none" else tuple(grad for grad in GRADS if grad in words(GRADS)(text))


ALL_PEERS = (*peers.names_of(HEAD), *peers.names_of(DIVERGE))


def peer_list(text, names=ALL_PEERS):
    """all, none, names, and -name to leave one out."""
    chosen = []
    for word in text.split(","):
        name = word.strip()
        if name == "all":
            chosen += names
        elif name[1:] in names and name[0] == "-":
            chosen = [other for other in chosen if other != name[1:]]
        elif name in names:
            chosen.append(name)
        elif name != "none":
            refuse(name, "all, none, -NAME to leave one out, or any of %s, separated by commas, is"
                   % ", ".join(names))
    return list(dict.fromkeys(chosen))


def peer_words(text):
    """The text, if it has names of peers alone: of which operation, parse knows."""
    peer_list(text)
    return text


def skipped(text):
    name, _, reason = text.partition("=")
    names = (TAIL, *ALL_PEERS)
    if name not in names or not reason:
        refuse(text, "NAME=REASON is, with one of " + ", ".join(names))
    return name, reason


def device(text):
    if text in ("cpu", "cuda"):
        return text
    return "cuda:%d" % integer(0, 4096)(text[5:] if text.startswith("cuda:") else text)


def add_case_options(parser):
    group = parser.add_argument_group("what is computed")
    group.add_argument("--vocab", type=integer(2), required=True, metavar="V", help="rows of the head's weight")
    group.add_argument("--hidden", type=depth, required=True, metavar="D",
                       help="columns of hidden states and weight, a multiple of 8")
    group.add_argument("--rows", type=integers, default=[8192], metavar="LIST", help="numbers of rows N; default 8192")
    group.add_argument("--dtype", choices=DTYPES, default="bf16", help="of hidden states and weight; default bf16")
    group.add_argument("--entropy", type=words(ENTROPIES), default=["none"], metavar="LIST",
                       help="any of none (default), forward, backward: with its gradient; each is a case of its own")
    group.add_argument("--grad", type=mask, action="append", metavar="LIST",
                       help="none (default), hidden (a frozen head) or hidden,weight; may be given more than once")
    group.add_argument("--bias", action="store_true", help="the head has a bias")
    group.add_argument("--softcap", type=number(), metavar="X", help="scores become X*tanh(score/X)")
    group.add_argument("--budget", type=size, metavar="BYTES", help="workspace of each pass of ours, as FLP_BUDGET")
    group.add_argument("--loss", metavar="LIST",
                       help="train by these losses instead: any of %s, alone or with +k1, +k2 or +k3; or %s, with a label "
                            "smoothing of %g and a z-loss of %g; needs --grad. With --op diverge any of %s"
                            % (", ".join(LOSSES), CROSS_ENTROPY, SMOOTHING, Z_LOSS, ", ".join(flp.losses.DIVERGENCES)))
    group.add_argument("--accumulate", action="store_true",
                       help="with --loss: ours adds the weight's gradient to an fp32 buffer")
    group.add_argument("--save", action="store_true", default=None,
                       help="ours saves exponentials from forward to backward, whatever the budget")
    group.add_argument("--frozen", action="store_true",
                       help="--grad hidden for any upstream gradient, compared with two products: the scores once")
    group.add_argument("--data", choices=sharp.KINDS, default=sharp.RANDOM,
                       help="random (default), or rows as sharp as a trained model's: policy (a reasoning model on its "
                            "own samples), text (a small model at temperature 0.6), base (at 1); needs flpgen")
    group.add_argument("--tail", type=tail, metavar="VALUE",
                       help="with --grad or --frozen: beside flp also 'flp, tail', whose gradients may leave out so much of "
                            "the sum of magnitudes of the scores' gradient: 2^-20 to 2^-2, as 2**-9, 1/512 or 0.002")
    group.add_argument("--device", type=device, default="cuda", metavar="WHERE",
                       help="cuda (default), a CUDA ordinal, or cpu")


def add_divergence_options(parser):
    group = parser.add_argument_group("divergences of two heads")
    group.add_argument("--op", choices=OPS, default=HEAD,
                       help="head (default): logprobs; diverge: a student's head from a teacher's, by --loss")
    group.add_argument("--teacher-hidden", type=depth, metavar="E",
                       help="columns of the teacher's hidden states and weight, D (default) or more")
    group.add_argument("--one-head", action="store_true",
                       help="the student's weight, frozen, is the teacher's too")
    group.add_argument("--policy", type=policy, metavar="LOSS",
                       help="steps of a policy by this loss of %s, alone or with +k1, +k2 or +k3, whose reference the "
                            "teacher is: the divergence counts %g times; ours alone has them; needs --grad"
                            % (", ".join(LOSSES), BETA))
    group.add_argument("--payload", action="store_true",
                       help="of forward_kl and a frozen head: ours takes what flp.divergence_payload made beforehand")


def add_run_options(parser):
    group = parser.add_argument_group("against whom, and how")
    group.add_argument("--peers", type=peer_words, default="all", metavar="LIST",
                       help="all (default), none, or names as below")
    group.add_argument("--skip", type=skipped, action="append", default=[], metavar="NAME=REASON",
                       help="leave a peer out and give this reason in the record")
    group.add_argument("--no-baseline", dest="baseline", action="store_false", help="without the GEMM baseline")
    group.add_argument("--no-bare", dest="baseline", action="store_false", help=argparse.SUPPRESS)
    group.add_argument("--burst-ms", type=number(60000), default=75.0, metavar="MS",
                       help="least length of a burst of calls; default 75")
    group.add_argument("--rounds", type=integer(1, 1000), default=7, help="bursts of each subject; default 7")
    group.add_argument("--seed", type=integer(0, 2**31), default=1, help="of the data and of the order; default 1")
    group.add_argument("--peer-seconds", type=number(), default=40.0, metavar="S",
                       help="that a peer may take to be imported, compiled and checked; default 40")
    group.add_argument("--seconds", type=number(), default=230.0, metavar="S",
                       help="after which no further peer is begun and rounds end early; default 230")
    group.add_argument("--quiet", "-q", action="store_true", help="no progress")
    group.add_argument("--json", nargs="?", const="-", metavar="FILE",
                       help="write the record here; alone or '-': to standard output")


def check_divergence(parser, values):
    """Fills in teacher_hidden. error: SystemExit 2"""
    others = [name for name in ("bias", "softcap", "save", "frozen", "tail", "accumulate") if values[name]]
    if others or values["entropy"] != ["none"]:
        parser.error("argument --op: diverge is not accepted with --%s" % (others or ["entropy"])[0])
    values["teacher_hidden"] = values["teacher_hidden"] or values["hidden"]
    more = values["teacher_hidden"] - values["hidden"]
    if more < 0 or more and values["one_head"]:
        parser.error("argument --teacher-hidden: %d is not accepted; %s --hidden is, %d" % (
            values["teacher_hidden"], "with --one-head" if values["one_head"] else "at least", values["hidden"]))
    if values["policy"] and values["dtype"] == "fp16":
        parser.error("argument --dtype: fp16 is not accepted with --policy")
    if values["policy"] and (values["payload"] or not all(values["grad"])):
        parser.error("argument --policy: needs --grad hidden, or hidden,weight, and is not accepted with --payload")
    if values["payload"] and (values["loss"] != ["forward_kl"] or values["one_head"]):
        parser.error("argument --payload: only with --loss forward_kl, without --one-head")
    if (values["one_head"] or values["payload"]) and any("weight" in grads for grads in values["grad"]):
        parser.error("argument --grad: weight is not accepted with --one-head or --payload, which are of a frozen head")


def parse(arguments):
    """What was chosen, by the names of the options; --grad as tuples of hidden, weight, () for none; --skip as reasons
    by name. error: SystemExit 2 with a sentence"""
    listed = {op: "\n".join("  %-14s %s" % (peer.name, peer.title) for peer in peers.of(op)) for op in OPS}
    parser = argparse.ArgumentParser(prog=PROGRAM, description=DESCRIPTION,
                                     epilog=EPILOG.format(program=PROGRAM, peers=listed[HEAD],
                                                          diverging=listed[DIVERGE]),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add_case_options(parser)
    add_divergence_options(parser)
    add_run_options(parser)
    values = vars(parser.parse_args(arguments))
    if values["frozen"] and (values["grad"] or values["loss"] or values["save"] or "backward" in values["entropy"]):
        parser.error("argument --frozen: not accepted with --grad, --loss, --save or --entropy backward")
    values["grad"] = [("hidden",)] if values["frozen"] else list(dict.fromkeys(values["grad"] or [()]))
    values["skip"] = dict(values["skip"])
    op, no_loss = values["op"], "reverse_kl" if values["op"] == DIVERGE else None
    for name, of_words in (("peers", functools.partial(peer_list, names=peers.names_of(op))), ("loss", losses_of[op])):
        try:
            text = values[name] or no_loss
            values[name] = of_words(text) if text else []
        except argparse.ArgumentTypeError as error:
            parser.error("argument --%s: %s" % (name, error))
    if op == DIVERGE:
        check_divergence(parser, values)
        return argparse.Namespace(**values)
    if values["teacher_hidden"] or values["one_head"] or values["payload"] or values["policy"]:
        parser.error("argument --teacher-hidden, --one-head, --payload, --policy: only with --op diverge")
    if values["loss"] and not any(values["grad"]):
        parser.error("argument --loss: needs --grad hidden, or hidden,weight")
    if values["loss"] and (values["entropy"] != ["none"] or values["softcap"] or values["save"]):
        parser.error("argument --loss: not accepted with --entropy, --softcap or --save")
    if values["tail"] and not any(values["grad"]):
        parser.error("argument --tail: needs --grad, or --frozen")
    if values["tail"] and values["save"]:
        parser.error("argument --tail: not accepted with --save: with a tail forward keeps lists of columns, and no "
                     "exponentials")
    if values["accumulate"] and not values["loss"]:
        parser.error("argument --accumulate: only with --loss")
    return argparse.Namespace(**values)

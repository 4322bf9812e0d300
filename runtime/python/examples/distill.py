#!/usr/bin/env python3
"""Distillation from a teacher's head: a smaller model learns a larger one's distributions over the whole vocabulary.

    python3 runtime/python/examples/distill.py [--kind reverse_kl] [--payload] [--tiny] [--device cuda] [--json FILE]

The teacher is trained on sequences that count on by steps of their own, then frozen. The student reads the same tokens
and minimises flp.divergence_loss between the two heads, whose hidden states have different sizes: nobody sends scores.

--payload has the student's head frozen, and the teacher send flp.divergence_payload in the place of hidden states: all
that forward KL needs, of which flp.divergence makes the same loss in two products.
"""
import _tiny
import torch

import flp


def taught(arguments):
    """A teacher that predicts the next token, frozen."""
    teacher = _tiny.TinyLM(arguments.vocab, 2 * arguments.hidden, 2, 4).to(arguments.device)
    optimizer = torch.optim.AdamW(teacher.parameters(), lr=0.3 / arguments.hidden)
    for step in range(arguments.lessons):
        tokens = _tiny.batch_of(arguments, step)
        with _tiny.autocast(arguments.device):
            flp.cross_entropy(teacher(tokens[:, :-1]), teacher.head.weight, tokens[:, 1:]).backward()
        optimizer.step(), optimizer.zero_grad()
    return teacher.requires_grad_(False)


def of_heads(student, teacher, tokens, kind):
    """-> loss, divergence and agreement"""
    loss, metrics = flp.divergence_loss(student(tokens), student.head.weight, teacher(tokens), teacher.head.weight,
                                        kind)
    return loss, metrics[kind], metrics["agreement"]


def of_payload(student, teacher, tokens):
    """The same of forward_kl, from what a teacher may send; who agrees it does not say."""
    payload = flp.divergence_payload(teacher(tokens), teacher.head.weight, student.head.weight)
    loss = flp.divergence(student(tokens), student.head.weight, kind="forward_kl", payload=payload).value.mean()
    return loss, loss.detach(), torch.tensor(float("nan"))


def train(arguments, say=_tiny.say):
    """-> the divergence of every step, and the share of tokens whose best guess is the teacher's"""
    teacher = taught(arguments)
    student = _tiny.TinyLM(arguments.vocab, arguments.hidden, 1, 4).to(arguments.device)
    student.head.requires_grad_(not arguments.payload)
    optimizer = torch.optim.AdamW(student.parameters(), lr=0.3 / arguments.hidden)
    divergences, agreements = [], []
    for step in range(arguments.steps):
        tokens = _tiny.batch_of(arguments, arguments.lessons + step)
        with _tiny.autocast(arguments.device):
            loss, divergence, agreement = of_payload(student, teacher, tokens) if arguments.payload else \
                of_heads(student, teacher, tokens, arguments.kind)
        loss.backward(), optimizer.step(), optimizer.zero_grad()
        divergences.append(divergence.item()), agreements.append(agreement.item())
        say("step %3d  divergence %.4f  agreement %.3f" % (step, divergences[-1], agreements[-1]))
    return {"divergences": divergences, "agreements": agreements}


def add_options(options, kind):
    """Those of an example with a teacher; kind: the default."""
    options.add_argument("--kind", choices=list(flp.losses.DIVERGENCES), default=kind)
    _tiny.add_sizes(options, lessons=(60, 60), steps=(60, 60), batch=(8, 4), length=(128, 24), vocab=(4096, 211),
                    hidden=(256, 64))
    return options


def parser():
    options = _tiny.parser(__doc__)
    options.add_argument("--payload", action="store_true", help="forward_kl of a frozen head, not --kind")
    return add_options(options, "reverse_kl")


if __name__ == "__main__":
    given = _tiny.with_sizes(parser().parse_args())
    torch.manual_seed(given.seed)
    _tiny.write_record(given, train(given))

#!/usr/bin/env python3
"""A teacher in another process: it answers over HTTP with a few numbers a token, and a student learns from them.

    python3 runtime/python/examples/teacher.py [--asks topk] [--tiny] [--device cuda] [--json FILE]

topk     the teacher's best K tokens with their log-probabilities; the rest is one more outcome
ids      log-probabilities of K tokens that the student names, its own best: reverse KL where the student's mass is
payload  all that forward KL of a frozen head over the whole vocabulary needs (flp.divergence_payload)

A request is tokens and what is asked for, a reply tensors of float32 and int64, both as torch.save writes them.
"""
import http.server
import io
import threading
import urllib.request

import _tiny
import distill
import torch

import flp


def packed(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def unpacked(data):
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def answers(model, device, tokens, asks, k=0, ids=None, head=None):
    """What the teacher sends of tokens (B, T): a dict of tensors of B·T rows."""
    hidden, weight = model(tokens.to(device)), model.head.weight
    if asks == "payload":
        return flp.divergence_payload(hidden, weight, head.to(device))._asdict()
    if asks == "ids":
        return {"logprobs": flp.linear_logprob(hidden, weight, ids.to(device))}
    return flp.linear_logprob(hidden, weight, tokens.to(device), topk=k)[1]._asdict()


def served(model, device):
    """A server of this teacher on a port of this machine, in a thread of its own."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            with torch.no_grad(), _tiny.autocast(device):
                made = answers(model, device, **unpacked(self.rfile.read(int(self.headers["Content-Length"]))))
            reply = packed({name: tensor.cpu() for name, tensor in made.items() if tensor is not None})
            self.send_response(200), self.end_headers(), self.wfile.write(reply)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def ask(server, device, **request):
    """-> the reply's tensors by name, and its bytes"""
    with urllib.request.urlopen("http://127.0.0.1:%d" % server.server_port, packed(request)) as response:
        reply = response.read()
    return {name: tensor.to(device) for name, tensor in unpacked(reply).items()}, len(reply)


def loss_of(student, server, tokens, arguments):
    """-> the loss, and the bytes of the teacher's reply"""
    hidden, weight = student(tokens), student.head.weight
    request = {"tokens": tokens.cpu(), "asks": arguments.asks}
    if arguments.asks == "payload":
        made, size = ask(server, tokens.device, **request, head=weight.detach().cpu())  # sent each time, for brevity
        payload = flp.Payload(made["mean"], made["entropy"], None)
        return flp.divergence(hidden, weight, kind="forward_kl", payload=payload).value.mean(), size
    if arguments.asks == "topk":
        made, size = ask(server, tokens.device, **request, k=arguments.k)
        return flp.distill_loss(hidden, weight, made["ids"], made["logprobs"])[0], size
    with torch.no_grad():
        _, own = flp.linear_logprob(hidden, weight, tokens, topk=arguments.k)
    made, size = ask(server, tokens.device, **request, ids=own.ids.cpu())
    return flp.distill_loss(hidden, weight, own.ids, made["logprobs"], loss="reverse_kl")[0], size


def train(arguments, say=_tiny.say):
    """-> the divergence of every step, and bytes that the teacher sends a token"""
    server = served(distill.taught(arguments), arguments.device)
    student = _tiny.TinyLM(arguments.vocab, arguments.hidden, 1, 4).to(arguments.device)
    student.head.requires_grad_(arguments.asks != "payload")
    optimizer = torch.optim.AdamW(student.parameters(), lr=0.3 / arguments.hidden)
    divergences = []
    for step in range(arguments.steps):
        tokens = _tiny.batch_of(arguments, arguments.lessons + step)
        with _tiny.autocast(arguments.device):
            loss, size = loss_of(student, server, tokens, arguments)
        loss.backward(), optimizer.step(), optimizer.zero_grad()
        divergences.append(loss.item())
        say("step %3d  divergence %.4f  %d bytes a token" % (step, divergences[-1], size / tokens.numel()))
    server.shutdown()
    return {"divergences": divergences, "bytes_per_token": size / tokens.numel()}


def parser():
    options = _tiny.parser(__doc__)
    options.add_argument("--asks", choices=("topk", "ids", "payload"), default="topk")
    _tiny.add_sizes(options, lessons=(60, 60), steps=(60, 60), batch=(8, 4), length=(128, 24), vocab=(4096, 211),
                    hidden=(256, 64), k=(64, 16))
    return options


if __name__ == "__main__":
    given = _tiny.with_sizes(parser().parse_args())
    torch.manual_seed(given.seed)
    _tiny.write_record(given, train(given))

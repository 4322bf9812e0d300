"""A kernel of the kernels hub in a process of its own, as test_hub.py starts it, or by hand on a GPU:

    FLP_LIBRARY=build/release/lib/libflp.so PYTHONPATH=runtime/python:tests/support \\
        FLP_TEST_DEVICE=cuda python tests/support/flp_hub.py plain|kernels EXPORT

plain loads the variant as `kernels` does, but without it; kernels asks kernels.get_local_kernel. The process has pip's
flp, of the tree, from the start. Prints a line for each check that held.
"""
import importlib.util
import inspect
import json
import os
import sys
from pathlib import Path

import torch

import flp
from flp_reference import DEVICE, GRAD_TOLERANCE, VALUE_TOLERANCE, doubles, problem, reference, relative

flp.version()  # opens the library of pip's flp; the hub's copy must not see where that is
del os.environ["FLP_LIBRARY"]


def load_plain(export):
    backend = "cpu" if torch.device(DEVICE).type == "cpu" else "cu" + torch.version.cuda.split(".")[0]
    variant, = (path for path in (export / "build").glob("torch-*") if path.name.split("-")[3].startswith(backend))
    name = json.loads((variant / "metadata.json").read_text())["id"]
    spec = importlib.util.spec_from_file_location(name, variant / "__init__.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_kernels(export):
    import kernels
    return kernels.get_local_kernel(export)


def private(module, name):
    """A file of the loaded copy."""
    return sys.modules[module.__name__ + "." + name]


def check_interface(module):
    assert all(hasattr(module, name) for name in module.__all__)
    assert private(module, "_library._c").library_path().startswith(str(Path(module.__file__).parent))


def check_linear_logprob(module):
    hidden, weight, target, bias = problem(bias=True)
    given = [tensor.requires_grad_() for tensor in (hidden, weight, bias)]
    logprob = module.linear_logprob(hidden, weight, target, bias, temperature=0.7)
    wide = doubles(*given)
    wanted, _ = reference(wide[0], wide[1], target, wide[2], temperature=0.7)
    assert float((logprob.double() - wanted).detach().abs().max()) < VALUE_TOLERANCE
    logprob.square().sum().backward()
    wanted.square().sum().backward()
    for tensor, want in zip(given, wide):
        assert relative(tensor.grad, want.grad) < 4 * GRAD_TOLERANCE[torch.float32]


def check_selective_log_softmax(module):
    logits = (torch.randn(3, 5, 211, generator=torch.Generator().manual_seed(1)) * 3).to(DEVICE).requires_grad_()
    index = torch.randint(211, (3, 5), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    wide, = doubles(logits)
    got = module.selective_log_softmax(logits, index)
    wanted = wide.log_softmax(-1).gather(-1, index.unsqueeze(-1)).squeeze(-1)
    assert float((got.double() - wanted).detach().abs().max()) < VALUE_TOLERANCE
    got.square().sum().backward()
    wanted.square().sum().backward()
    assert relative(logits.grad, wide.grad) < GRAD_TOLERANCE[torch.float32]


def check_policy_loss(module):
    hidden, weight, target, _ = problem(n=12)
    hidden = hidden.reshape(3, 4, -1).requires_grad_()
    loss, _ = module.policy_loss("nll", hidden, weight, target.reshape(3, 4))
    wide, = doubles(hidden)
    wanted = -reference(wide.reshape(12, -1), weight.double(), target)[0].mean()
    assert abs(float(loss.detach()) - float(wanted.detach())) < VALUE_TOLERANCE
    loss.backward()
    wanted.backward()
    assert relative(hidden.grad, wide.grad) < 4 * GRAD_TOLERANCE[torch.float32]


def check_layers(module):
    """The hub's rules on layers, and their values in a layer that adopts the forward."""
    members = {name for name, _ in inspect.getmembers(torch.nn.Module)}
    for layer in (module.layers.LinearLogprob, module.layers.SelectiveLogSoftmax):
        assert layer.__init__ is torch.nn.Module.__init__
        assert {name for name, _ in inspect.getmembers(layer)} - members <= {"can_torch_compile", "has_backward"}
    hidden, weight, target, bias = problem(bias=True)
    head = torch.nn.Linear(64, 331).to(DEVICE)
    head.load_state_dict({"weight": weight, "bias": bias})
    got = module.layers.LinearLogprob.forward(head, hidden, target)
    logits = head(hidden)
    assert torch.allclose(got, module.layers.SelectiveLogSoftmax()(logits, target), atol=VALUE_TOLERANCE)


def check_beside_pip(module):
    """Two libraries, two namespaces of operators, two logs; the same bits."""
    hidden, weight, target, _ = problem()
    pip = flp.linear_logprob(hidden, weight, target)
    assert torch.equal(pip, module.linear_logprob(hidden, weight, target))
    libraries = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libflp.so" in line}
    assert len(libraries) == 2
    names = private(flp, "_tensors._ops").NAMESPACE, private(module, "_tensors._ops").NAMESPACE
    assert names == ("flp", module.__name__)
    seen = {flp: [], module: []}
    for copy, texts in seen.items():
        copy.set_log(lambda _level, text, texts=texts: texts.append(text))
    for copy in seen:
        private(copy, "_library._c").log(0, "of " + copy.__name__)
        copy.set_log()
    assert seen == {copy: ["of " + copy.__name__] for copy in seen}


def check_compiled(module):
    """Each copy's operators, whole in a graph. Where torch has none of ours: that none are defined."""
    hidden, weight, target, _ = problem()
    for copy in (flp, module):
        operators = getattr(torch.ops, private(copy, "_tensors._ops").NAMESPACE)
        if not private(copy, "_tensors._compile").HAS_OPERATORS:
            assert not hasattr(operators, "linear_logprob")
            continue
        arguments = (hidden, weight, None, target, None, None, 0.7, None, 1.0, -100, None, True)
        torch.library.opcheck(operators.linear_logprob.default, arguments)
        compiled = torch.compile(lambda *given: copy.linear_logprob(*given), fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(hidden, weight, target), copy.linear_logprob(hidden, weight, target))
        select = torch.compile(lambda *given: copy.selective_log_softmax(*given), fullgraph=True, backend="aot_eager")
        logits = hidden @ weight.t()
        assert torch.equal(select(logits, target), copy.selective_log_softmax(logits, target))


def check_kernelize(module, export):
    """A head that takes the layer from the hub."""
    import kernels

    class Head(torch.nn.Linear):
        def forward(self, hidden, target):
            return torch.nn.Linear.forward(self, hidden).log_softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)

    hidden, _, target, _ = problem()
    head = kernels.use_kernel_forward_from_hub("LinearLogprob")(Head)(64, 331).to(DEVICE)
    wanted, device = head(hidden, target), torch.device(DEVICE).type
    mapping = {"LinearLogprob": {device: kernels.LocalLayerRepository(export, layer_name="LinearLogprob")}}
    with kernels.use_kernel_mapping(mapping, inherit_mapping=False):
        kernels.kernelize(head, mode=kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE, device=device,
                          use_fallback=False)
    assert head.forward.__func__ is module.layers.LinearLogprob.forward
    got = head(hidden, target)
    assert torch.allclose(got, wanted, atol=VALUE_TOLERANCE)
    got.sum().backward()
    assert head.weight.grad is not None


def main(how, export):
    sys.dont_write_bytecode = True
    export = Path(export).resolve()
    module = {"plain": load_plain, "kernels": load_kernels}[how](export)
    for check in (check_interface, check_linear_logprob, check_selective_log_softmax, check_policy_loss, check_layers,
                  check_beside_pip, check_compiled):
        check(module)
        print(check.__name__)
    if how == "kernels":
        check_kernelize(module, export)
        print(check_kernelize.__name__)


if __name__ == "__main__":
    main(*sys.argv[1:])

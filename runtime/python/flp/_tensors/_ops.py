"""The operators of this copy of the package: their namespace in torch.ops, and how one is registered.

torch has one table of operators for a process. A copy that the `kernels` package loads stands under a name of its own
in sys.modules, and its namespace is that name; so no copy meets the operators of another, or of pip's flp.
Invariant: what registers or calls an operator has its name from here. Names of ops and add_op_namespace_prefix are the
convention of the kernels hub.
"""
import torch

NAMESPACE = __package__.rpartition(".")[0].replace(".", "_")  # "flp", where pip installed the package
ops = getattr(torch.ops, NAMESPACE)


def add_op_namespace_prefix(name):
    """An operator's name as torch.library takes it, "flp::linear_logprob"."""
    return "%s::%s" % (NAMESPACE, name)


def define(name, schema, kernel, fake, autograd, **options):
    """Registers an operator: what computes it, shapes and dtypes of its results, its derivative.

    options  those of torch.library.register_autograd
    """
    name = add_op_namespace_prefix(name)
    torch.library.define(name, schema)
    torch.library.impl(name, ("CPU", "CUDA"))(kernel)
    torch.library.register_fake(name)(fake)
    torch.library.register_autograd(name, autograd, **options)

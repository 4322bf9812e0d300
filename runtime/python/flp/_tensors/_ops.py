"""The operators of this copy of the package: their namespace in torch.ops, and how they are registered.

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


def define(name, no_second, forward, backward):
    """Registers an operator and name_backward, which its derivative calls and which has none. Called once, at import.

    no_second  the message of a second derivative
    forward    schema; what computes it; shapes and dtypes of its results; its derivative; what that is set up by
    backward   the first three of name_backward
    """
    def refuse(ctx, *_grads):
        raise RuntimeError(no_second)

    for own, parts in ((name, forward), (name + "_backward", (*backward, refuse, None))):
        schema, kernel, fake, derivative, setup_context = parts
        own = add_op_namespace_prefix(own)
        torch.library.define(own, schema)
        torch.library.impl(own, ("CPU", "CUDA"))(kernel)
        torch.library.register_fake(own)(fake)
        torch.library.register_autograd(own, derivative, setup_context=setup_context)

"""One step of torchtitan's loss over a head whose vocabulary two processes share, as its spmd_types backend has it."""
import torch
import torch.distributed as dist

VOCAB, COUNT = 1000, 33.0


def step(rank, store, where, dtype):
    """Writes what the host and what flp computes on this rank to where/rank."""
    import flp
    from test_torchtitan import batch, losses, results_of, wrapped
    from torch.distributed.device_mesh import init_device_mesh
    from torchtitan.distributed import spmd_types, utils

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method="file://%s" % store)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    utils.set_spmd_backend("spmd_types")
    hidden, head, labels = batch(dtype)
    head.weight = torch.nn.Parameter(head.weight.detach().chunk(2)[rank].clone())
    found, left = {}, []
    flp.set_log(lambda level, text: left.append(text))
    with spmd_types.set_current_spmd_mesh(mesh):
        fused = wrapped(head, losses.CrossEntropyLoss.Config(global_vocab_size=VOCAB))
        for name in ("host", "flp"):
            found[name] = results_of(lambda: fused(hidden, labels, torch.tensor(COUNT)), hidden, head)
            flp.install("torchtitan")
    flp.uninstall("torchtitan")
    assert not left, left
    torch.save(found, where / str(rank))
    dist.destroy_process_group()

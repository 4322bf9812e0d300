"""Processes of one torch.distributed world (gloo), started once, that run functions of importable modules."""
import datetime
import multiprocessing
import traceback

import torch
import torch.distributed as dist


class Ranks:
    """world processes; run() calls a function on the first few of them."""

    def __init__(self, world, store):
        # One process imports torch, runs nothing, and is forked: spawned ones would import it once each.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["flp_parallel_cases"])
        self.pipes, self.processes = [], []
        for rank in range(world):
            ours, theirs = context.Pipe()
            self.pipes.append(ours)
            self.processes.append(context.Process(target=serve, args=(rank, world, str(store), theirs), daemon=True))
            self.processes[-1].start()

    def run(self, size, function, **keywords):
        """function(rank, group, **keywords) on ranks 0 to size - 1 -> their results in rank order."""
        for pipe in self.pipes[:size]:
            pipe.send((size, function, keywords))
        answers = []
        for pipe in self.pipes[:size]:
            assert pipe.poll(1200), "a rank does not answer"
            answers.append(pipe.recv())
        failures = [text for good, text in answers if not good]
        assert not failures, failures[0]
        return [result for _, result in answers]

    def close(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join()


def serve(rank, world, store, pipe):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world,
                            timeout=datetime.timedelta(minutes=20))
    groups = {size: dist.new_group(list(range(size))) for size in range(1, world + 1)}
    while True:
        size, function, keywords = pipe.recv()
        try:
            pipe.send((True, function(rank, groups[size], **keywords)))
        except Exception:  # whatever it is, the test shows it
            pipe.send((False, traceback.format_exc()))

"""Calls as CUDA graphs, for tests and scripts."""
import torch


def warm_up(call, times=3):
    """The call on a side stream, as capturing wants it: plans are made, torch's own handles too."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(times):
            call()
    torch.cuda.current_stream().wait_stream(side)


def capture(call):
    """The call, warm, as a CUDA graph -> replay(), and the results that it fills."""
    warm_up(call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    return graph.replay, results

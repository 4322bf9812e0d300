"""Entry points of the package: what a rollout engine calls in each of its processes. Off, they import nothing."""
import os


def vllm():
    """vllm.general_plugins: flp.adapters.vllm.register(), if the environment's FLP_VLLM names what flp shall take."""
    if os.environ.get("FLP_VLLM"):
        from flp.adapters.vllm import register

        register()

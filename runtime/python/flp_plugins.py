"""Entry points of the package: what rollout engines call in each of their processes. Off, they import nothing."""
import os


def sglang():
    """sglang.srt.plugins: flp.adapters.sglang.register(), if the environment's FLP_SGLANG names what flp shall take."""
    if os.environ.get("FLP_SGLANG"):
        from flp.adapters.sglang import register

        register()


def vllm():
    """vllm.general_plugins: flp.adapters.vllm.register(), if the environment's FLP_VLLM names what flp shall take."""
    if os.environ.get("FLP_VLLM"):
        from flp.adapters.vllm import register

        register()

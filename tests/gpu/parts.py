"""The parts of a campaign (record.py): what each measures, and with which words."""
import importlib.util

# Parts that are one script of the tree: the record's name, and the command.
SCRIPTS = {
    "gated": ("gated_step", "tests/gpu/gated_step.py"),
    "heads": ("head_memory", "tests/gpu/head_memory.py"),
    "responses": ("response_rows", "tests/gpu/response_rows.py"),
    "trainer": ("trainer_step", "tests/gpu/trainer_step.py"),
    "portable": ("portable", "tests/gpu/portable.py", "--cutlass", "{out}/cutlass"),
    "train": ("train_tiny_lm", "runtime/python/examples/train_tiny_lm.py", "--compare", "--steps", "40"),
    "grpo_tail": ("grpo_tail", *"runtime/python/examples/grpo_tiny.py --compare-tail --seeds 3 --vocab 256".split()),
    "examples": ("examples", "tests/gpu/examples.py"),
    "selective": ("selective", "tests/gpu/selective.py"),
    "mixed_bits": ("mixed_bits", "tests/gpu/mixed_bits.py"),
    "engines": ("engines", "tests/gpu/engines.py"),
    "near_certain": ("near_certain", "tests/gpu/near_certain.py"),
    "jax": ("jax", "tests/gpu/jax_check.py"),
    "fragmentation": ("fragmentation", "tests/gpu/fragmentation.py",
                      *(("--plots", "{out}/plots") if importlib.util.find_spec("matplotlib") else ())),
}
DTYPES = ("bf16", "fp16", "fp32")
GRADS = "--entropy backward --grad hidden,weight,bias --bias"
SMALL = "--vocab 1531 --hidden 72 --rows 67".split()
FEW = "--vocab 777 --hidden 72 --rows 131".split()  # two tiles of rows, two slices of columns


def problems(common, *texts):
    """A problem, as words of a command, of each text behind what all have in common."""
    return [f"{common} {text}".split() for text in texts]


ROUNDED = "--weight-dtype fp32 --mixed round"
SMOOTHED = "--loss cross_entropy --loss-parameter label_smoothing=0.1 --loss-parameter z_loss=1e-4 --budget 1.5G " \
           "--rows 8192"
HEAD = "--vocab 151936 --hidden 4096".split()
FLAGSHIP = "--vocab 151936 --hidden 4096 --dtype bf16"
FORWARD = "--dtype bf16 --entropy forward"
WIDE = "--vocab 248320 --hidden 2048 --dtype bf16"
LOSS = "--loss grpo+k3 --loss-parameter beta=0.04"
STEP = f"--mode stream {LOSS}"
BOTH = "--grad hidden,weight --rows 8192"
TOP = f"{FLAGSHIP} --topk 20 --rank"
TRAINING = "--entropy backward --grad hidden,weight --budget 1G"
LORA = f"{FLAGSHIP} --lora-rank 64"
TAIL = f"{FLAGSHIP} --tail 2^-9 --budget 1.5G --rows 8192"
LONG = "--vocab 151936 --hidden 2048 --dtype bf16 --tail 2^-9 --rows 65536"


def words_of(parts):
    return {part: {name: text.split() for name, text in records.items()} for part, records in parts.items()}


BENCHES = words_of({  # by part; flpgen bench
    "bench": {
        "bench_training": f"{FLAGSHIP} {TRAINING} --rows 1024,8192",
        "bench_frozen_head": f"{FLAGSHIP} --entropy backward --grad hidden --budget 1G --rows 8192",
        "bench_training_2048": f"--vocab 151936 --hidden 2048 --dtype bf16 {TRAINING} --rows 8192",
        "bench_forward_4096": f"--vocab 151936 --hidden 4096 {FORWARD} --rows 256,1024,8192",
        "bench_forward_2048": f"--vocab 151936 --hidden 2048 {FORWARD} --rows 8192",
        "bench_forward_1024": f"--vocab 151936 --hidden 1024 {FORWARD} --rows 8192",
        "bench_forward_8192": f"--vocab 128256 --hidden 8192 {FORWARD} --rows 8192",
        "bench_forward_long": f"{WIDE} --entropy forward --rows 65536 --budget 256M",
        "bench_softcap": f"--vocab 256000 --hidden 2304 {FORWARD} --softcap 30 --rows 8192",
        "bench_forward_masked": f"--vocab 151936 --hidden 4096 {FORWARD} --rows 8192 --masked 0.5",
    },
    "bench_modes": {
        "bench_saved": f"{FLAGSHIP} --keep --grad hidden,weight --budget 4G --rows 8192",
        "bench_saved_entropy": f"{FLAGSHIP} --keep --entropy backward --grad hidden,weight --budget 4G --rows 8192",
        "bench_streamed": f"{FLAGSHIP} {STEP} --grad hidden,weight --accumulate-grad-weight --budget 1.5G --rows 8192",
        "bench_streamed_frozen": f"{FLAGSHIP} {STEP} --grad hidden --budget 768M --rows 8192",
        "bench_streamed_long": f"{WIDE} {STEP} --grad hidden --budget 1G --rows 65536",
        "bench_streamed_returned": f"{FLAGSHIP} {STEP} --grad hidden,weight --budget 1.5G --rows 8192",
        "bench_streamed_nll": f"{FLAGSHIP} --mode stream --loss nll --grad hidden,weight --budget 1.5G --rows 8192",
        "bench_streamed_top_20": f"{TOP} {STEP} {BOTH} --budget 2G",
        "bench_streamed_distill_64": f"{FLAGSHIP} --mode stream --loss forward_kl --targets 64 {BOTH} --budget 2G",
        "bench_direction": f"{FLAGSHIP} --mode direction --grad hidden --budget 512M --rows 8192",
        "bench_direction_long": f"{WIDE} --mode direction --grad hidden --budget 1G --rows 65536",
    },
    "bench_short": {
        "bench_forward_short": f"{FLAGSHIP} --entropy forward --rows 1,8,16,64,128",
        "bench_streamed_short": f"{FLAGSHIP} {STEP} --grad hidden,weight --budget 1.5G --rows 256,1024",
    },
    "bench_cross_entropy": {
        "bench_streamed_cross_entropy": f"{FLAGSHIP} {SMOOTHED} --mode stream --grad hidden,weight",
        "bench_cross_entropy_lora": f"{FLAGSHIP} {SMOOTHED} --lora-rank 64 --grad hidden,lora_a,lora_b",
        "bench_cross_entropy_mixed": f"{FLAGSHIP} {SMOOTHED} {ROUNDED} --grad hidden,weight",
    },
    "bench_adapters": {
        "bench_lora_forward": f"{LORA} --rows 8192",
        "bench_lora": f"{LORA} --grad hidden,lora_a,lora_b --budget 1G --rows 8192",
        "bench_lora_mixed_round": f"{LORA} {ROUNDED} --grad hidden,lora_a,lora_b --budget 1G --rows 8192",
        "bench_kept_20_lora": f"{LORA} --keep-set 20 --grad hidden,lora_a,lora_b --rows 8192",
        "bench_streamed_lora": f"{LORA} {STEP} --grad hidden,lora_a,lora_b --budget 1.5G --rows 8192",
        "bench_tail_policy_lora": f"{TAIL} --lora-rank 64 --data policy --grad hidden,lora_a,lora_b",
    },
    "bench_mixed": {
        f"bench_mixed_{mixed}": f"{FLAGSHIP} --weight-dtype fp32 --mixed {mixed} --budget {budget} --rows 8192"
        for mixed, budget in (("round", "1G"), ("split", "3G"))
    },
    "bench_lists": {
        **{f"bench_kept_{count}": f"{FLAGSHIP} --keep-set {count} {BOTH}" for count in (20, 512)},
        "bench_kept_20_step": f"{FLAGSHIP} --keep-set 20 {LOSS} {BOTH}",
        "bench_kept_512_top_20": f"{TOP} --keep-set 512 --rows 8192",
    },
    "bench_tail": {
        **{f"bench_tail_{data}": f"{TAIL} --data {data} --grad hidden,weight"
           for data in ("policy", "text", "base", "random")},
        "bench_tail_policy_frozen": f"{TAIL} --data policy --grad hidden",
        "bench_tail_policy_top_20": f"{TAIL} --topk 20 --rank --data policy --grad hidden,weight",
        **{f"bench_tail_{data}_step": f"{TAIL} --data {data} --grad hidden,weight {LOSS}"
           for data in ("policy", "random")},
        "bench_tail_long": f"{LONG} --data policy --grad hidden,weight",
        "bench_tail_long_step": f"{LONG} --data policy --grad hidden,weight {LOSS}",
    },
    "bench_targets": {
        **{f"bench_targets_{count}": f"{FLAGSHIP} --targets {count} {BOTH} --budget 1G" for count in (20, 64, 512)},
        "bench_targets_64_entropy": f"{FLAGSHIP} --targets 64 {TRAINING} --rows 8192",
        "bench_targets_64_saved": f"{FLAGSHIP} --targets 64 --keep {BOTH} --budget 4G",
    },
    "bench_top": {
        "bench_top_20": f"{TOP} --rows 8192",
        "bench_top_20_policy": f"{TOP} --rows 8192 --data policy",
        "bench_top_128": f"{FLAGSHIP} --topk 128 --rows 8192",
        "bench_top_20_direction": f"{TOP} --keep --grad hidden --budget 4G --rows 8192",
        "bench_top_20_saved": f"{TOP} --keep {BOTH} --budget 4G",
        "bench_top_20_saved_policy": f"{TOP} --keep {BOTH} --budget 4G --data policy",
        "bench_rank": f"{FLAGSHIP} --rank --rows 8192",
        "bench_statistics": f"{FLAGSHIP} --statistics --rows 8192",
        "bench_statistics_policy": f"{FLAGSHIP} --statistics --rows 8192 --data policy",
        "bench_statistics_entropy": f"{FLAGSHIP} --statistics --entropy forward --rows 8192",
    },
})
SLICED = [f"bench_{name}" for name in "tail_policy tail_policy_top_20 top_20 rank kept_20 targets_64".split()]
BENCHES["bench_slices"] = {f"{name}_mixed": [*words, *ROUNDED.split()]
                           for part in BENCHES.values() for name, words in part.items() if name in SLICED}
LOSSES = "--loss grpo+k3,nll --peers all,-torch-compile,-verl,-quack,-agilerl,-agilerl-fp32"
OF_ROWS = "--tail 2^-9 --peers all,-torch-linear,-liger-mean,-liger-cute,-liger-grpo,-quack-mean,-quack-scaled," \
          "-unsloth-mean"
DIVERGE = "--op diverge --rows 8192 --budget 1.5G"
TWO_HEADS = f"{DIVERGE} --hidden 2048 --teacher-hidden 4096"
OF_POLICY = "--data policy --loss reverse_kl --policy grpo --grad hidden,weight --peers none"
PEERS = words_of({  # by part; python -m flp.bench: other libraries on the same tensors
    "peers": {"peers_training": "--rows 8192 --budget 1G --grad hidden,weight --entropy none,backward"},
    "peers_data": {
        f"peers_{data}": f"--rows 8192 --budget 4G --grad hidden,weight --data {data} {OF_ROWS}"
        for data in ("policy", "text", "base", "random")
    },
    "peers_modes": {
        "peers_steps": f"{LOSSES} --grad hidden,weight --accumulate --budget 1.5G",
        "peers_steps_frozen": f"{LOSSES} --grad hidden --budget 768M",
        "peers_saved": "--save --grad hidden,weight --entropy none,backward --budget 4G --peers "
                       "torch-fp32,torch-16bit,liger-scaled,quack,quack-scaled",
        "peers_default": "--rows 8192 --grad hidden,weight --entropy none,backward --peers torch-16bit",
        "peers_sft": "--loss cross_entropy,nll --grad hidden,weight --budget 1.5G --peers "
                     "all,-torch-compile,-verl,-agilerl,-agilerl-fp32",
        "peers_frozen": "--frozen --budget 512M --peers all,-agilerl-fp32",
    },
    "peers_diverge": {
        "peers_diverge_trained": f"{TWO_HEADS} --data policy --loss reverse_kl,jsd --grad hidden,weight",
        "peers_diverge_frozen": f"{TWO_HEADS} --data policy --loss reverse_kl,jsd --grad hidden",
        "peers_diverge_one_head": f"{DIVERGE} --one-head --data policy --loss reverse_kl,jsd --grad hidden",
        "peers_diverge_payload": f"{TWO_HEADS} --data policy --loss forward_kl --payload --grad hidden --peers none",
        "peers_diverge_random": f"{TWO_HEADS} --loss reverse_kl --grad hidden,weight",
        "peers_diverge_policy": f"{TWO_HEADS} {OF_POLICY}",
        "peers_diverge_policy_default": f"{TWO_HEADS.replace(' --budget 1.5G', '')} {OF_POLICY}",
    },
})
RECORDS = {**BENCHES, **PEERS}  # parts whose records --only takes by their names too

# By part: records of one process of flpgen check each, and those of a process a dtype.
CHECKS = {
    "check_modes": {name: ["--quick", "--mode", mode] for mode, name in
                    (("save", "check_saved"), ("stream", "check_streamed"), ("direction", "check_direction"))},
    "check_lists": {"check_listed": ["--quick", "--mode", "listed"]},
    "check_diverge": {"check_diverge": ["--op", "diverge"]},
    "check_loss": {"check_loss": ["--op", "loss"]},
    "large": {"check_large": ["--large", "--rung", "jit"]},
    "concurrent": {"check_concurrent": ["--concurrent"]},
}
CHECKS_OF_DTYPES = {"check": ("check_all", []), "check_tail": ("check_tail", ["--mode", "tail"]),
                    "check_targets": ("check_targets", ["--targets", "20"]),
                    "check_top": ("check_top", ["--topk", "20", "--rank"]),
                    "check_statistics": ("check_statistics", ["--statistics"]),
                    "check_raw": ("check_raw", ["--raw-scores"]),
                    "check_portable": ("check_portable", ["--arch", "sm_80", "--rung", "jit"])}
SANITIZERS = {  # by part: problems, one for each variant of a kernel's memory accesses, and the shape of all
    "sanitize": (problems(
        GRADS, "--dtype bf16", "--dtype fp16 --softcap 20", "--dtype fp32 --per-row-temperature",
        "--dtype bf16 --alignment 2", "--dtype fp32 --alignment 4", "--dtype bf16 --accumulate-grad-weight"), SMALL),
    "sanitize_modes": ([
        *problems(GRADS, "--dtype bf16 --keep", "--dtype bf16 --keep --alignment 2",
                  "--dtype bf16 --loss grpo+k3+entropy --mode stream"),
        # saved exponentials that are multiplied as they are: no gradient of entropy or bias
        *problems("--dtype bf16 --entropy forward --grad hidden,weight", "--keep", "--keep --alignment 2",
                  "--loss grpo+k3 --mode stream", "--loss grpo+k3 --mode stream --rung generic"),
        *problems("--dtype bf16 --entropy forward --grad hidden --mode direction", "--bias", "--alignment 2",
                  "--softcap 20 --rung generic")], SMALL),
    "sanitize_lists": (problems(
        f"{GRADS} --keep-set 20", "--dtype bf16", "--dtype fp16 --softcap 20", "--dtype fp32 --target-dtype int32",
        "--dtype bf16 --alignment 2", "--dtype bf16 --accumulate-grad-weight"), SMALL),
    "sanitize_tail": (problems(
        f"{GRADS} --tail 2^-9", "--dtype bf16", "--dtype fp16 --softcap 20", "--dtype fp32 --per-row-temperature",
        "--dtype bf16 --alignment 2", "--dtype bf16 --accumulate-grad-weight", "--dtype bf16 --loss grpo+k3+entropy",
        "--dtype bf16 --rung generic"), SMALL),
    "sanitize_targets": (problems(
        f"{GRADS} --targets 20", "--dtype bf16", "--dtype fp16 --softcap 20", "--dtype fp32 --per-row-temperature",
        "--dtype bf16 --target-dtype int32", "--dtype bf16 --alignment 2", "--dtype bf16 --accumulate-grad-weight",
        "--dtype bf16 --rung generic"), SMALL),
    "sanitize_top": (problems(
        "--bias --topk 20 --rank", "--dtype bf16", "--dtype fp16 --softcap 20", "--dtype fp32 --target-dtype int32",
        "--dtype bf16 --alignment 2", "--dtype bf16 --per-row-temperature --topk 128", "--dtype bf16 --rung generic"),
        SMALL),
    "sanitize_statistics": (problems(
        "--statistics", "--dtype bf16 --bias", "--dtype fp16 --softcap 20 --entropy forward", "--dtype fp32",
        "--dtype bf16 --alignment 2", "--dtype bf16 --keep-set 40", "--dtype bf16 --rung generic"), SMALL),
    "sanitize_raw": (problems(
        "--raw-scores", "--dtype bf16 --bias", "--dtype fp16 --softcap 20", "--dtype fp32",
        "--dtype bf16 --alignment 2", "--dtype bf16 --topk 20", "--dtype bf16 --rung generic"), SMALL),
    "sanitize_lora": (problems(
        "--lora-rank 24 --entropy backward --grad hidden,bias,lora_a,lora_b --bias", "--dtype bf16",
        "--dtype fp16 --softcap 20 --alignment 2", "--dtype fp32", "--dtype bf16 --rung generic"), FEW),
    "sanitize_mixed": (problems(
        GRADS, "--dtype bf16 --weight-dtype fp32 --mixed round",
        "--dtype fp16 --hidden-dtype fp32 --mixed split --softcap 20 --alignment 4",
        "--dtype bf16 --weight-dtype fp32 --mixed split --rung generic"), FEW),
    "sanitize_losses": (problems(
        "--loss cross_entropy --entropy forward --grad", "hidden,weight --dtype bf16 --mode stream",
        "hidden,weight,bias --bias --dtype fp16 --mode recompute-vocab",
        "hidden,weight --dtype bf16 --softcap 20 --mode recompute-vocab",
        "hidden,weight,bias --bias --dtype bf16 --rung generic"), FEW),
    "sanitize_means": (problems(
        "--loss cross_entropy --grad", "hidden,lora_a,lora_b --lora-rank 24 --dtype bf16",
        "hidden,weight,bias --bias --dtype fp16 --weight-dtype fp32 --mixed split",
        "hidden,weight,bias --bias --dtype bf16 --keep-set 40"), FEW),
    "sanitize_scale": ([["--op", "scale"]], []),
    "sanitize_diverge": ([["--op", "diverge"]], []),
    "sanitize_loss": ([["--op", "loss"]], []),
    "sanitize_portable": (problems(
        f"--arch sm_80 {GRADS}", "--dtype bf16", "--dtype bf16 --keep", "--dtype fp16 --softcap 20", "--dtype fp32",
        "--dtype bf16 --alignment 2", "--dtype bf16 --topk 20 --rank", "--dtype bf16 --tail 2^-9"), FEW),
}
PARTS = {  # in the order in which they are measured, as --help has them
    "check": "flpgen check --all: every rung, dtype, entropy, gradient mask, ragged shapes, adversarial inputs",
    "check_modes": "flpgen check --quick of save, stream and direction modes: the same of them alone",
    "check_lists": "flpgen check --quick of listed columns",
    "check_tail": "flpgen check --all of tail mode",
    "check_targets": "flpgen check --all of several targets a row",
    "check_top": "the same of best columns and ranks",
    "check_statistics": "the same of statistics of a row",
    "check_raw": "the same of raw scores",
    "check_diverge": "flpgen check of divergences of scores that exist, by every built-in loss over targets",
    "check_loss": "the same of losses of log-probabilities that exist, by every built-in loss of one target a row",
    "check_portable": "the same of the kernels for sm_80, which run on every newer GPU",
    "large": "flpgen check --large: N=8192, V=151936, D=4096 with gradients",
    "tilings": "the same of kernels for sm_90a and sm_80 with other tile configurations (tests/tilings.json)",
    "concurrent": "flpgen check --concurrent: bits on several streams at once, beside other work and in CUDA graphs",
    "sanitize": "compute-sanitizer memcheck, racecheck and initcheck over small problems of every kernel",
    "sanitize_modes": "the same over the kernels of save, stream and direction modes",
    "sanitize_lists": "the same over those of listed columns",
    "sanitize_tail": "the same over those of tail mode",
    "sanitize_targets": "the same over those of several targets a row",
    "sanitize_top": "the same over those of best columns and ranks",
    "sanitize_statistics": "the same over those of statistics of a row",
    "sanitize_lora": "the same over those of an adapter on the head",
    "sanitize_mixed": "the same over those of operands of two dtypes",
    "sanitize_losses": "the same over those of a loss over all scores: cross entropy with label smoothing and z-loss",
    "sanitize_means": "the same over those of a loss whose mean of scores takes a pass",
    "sanitize_scale": "the same over that of gradients times a factor",
    "sanitize_raw": "the same over those of raw scores",
    "sanitize_diverge": "the same over those of divergences of scores that exist",
    "sanitize_loss": "the same over those of losses of log-probabilities that exist",
    "sanitize_portable": "the same over the kernels for sm_80",
    "prove": "flpgen prove: Hopper's kernels, as those of an architecture that has never run where it is sold",
    "bench": "flpgen bench: forward and training beside the GEMM baselines",
    "bench_modes": "the same for save, stream and direction modes",
    "bench_short": "the same for few rows, as scorers and small batches have them",
    "bench_cross_entropy": "the same for a step of fine-tuning in stream mode, with label smoothing and z-loss",
    "bench_adapters": "the same for an adapter of rank 64 on a frozen head, beside products and beside no adapter",
    "bench_mixed": "the same for scores of a bf16 hidden and an fp32 weight, beside products of bf16 and bf16 alone",
    "bench_lists": "the same for kept sets, beside one product",
    "bench_tail": "the same for tail mode, over sharp rows and random ones, beside one product and the exact mode",
    "bench_targets": "the same for several targets a row, beside products and beside one target",
    "bench_slices": "the same for an fp32 head in bf16 slices beside lists, tails, targets and best columns",
    "bench_top": "forward with the best columns, the target's rank or statistics of a row, beside forward without",
    "peers": "tests/gpu/peers.py: other libraries on the same tensors (needs torch and those of\n"
             "runtime/python/flp/bench/peers/requirements.txt; set FLP_LIBRARY)",
    "peers_data": "the same on rows as sharp as a trained model's and on random ones, with a tail of flp and CCE's filter",
    "peers_diverge": "the same for divergences of a student's head from a teacher's, of one head, and from a payload",
    "peers_modes": "the same for save and stream modes, for the default budget, and for steps of supervised fine-tuning",
    "tune": "flpgen tune: one kernel exhaustively, then twice with the default budget and other seeds",
    "cold": "tests/gpu/cold_start.py: the first logprob of fresh processes with a pack and no generator (needs two\n"
            "packs, see there; its part on other libraries needs torch)",
    "hosts": "tests/hosts on the GPU, beside the trainers that are installed (its README.md; needs torch, pytest and\n"
             "transformers; set FLP_LIBRARY)",
    "hosts_two_gpus": "those of them whose heads are divided between two ranks, a GPU each (the same, and two GPUs)",
    "gated": "tests/gpu/gated_step.py: scoring, gate and backward in one CUDA graph (needs torch; set FLP_LIBRARY)",
    "heads": "tests/gpu/head_memory.py: peak memory and time of the projection step, whole scores beside\n"
             "flp.logprob_head (the same)",
    "responses": "tests/gpu/response_rows.py: a Megatron trainer's head where a third of the tokens are response, whole\n"
                 "scores beside flp.adapters.megatron (the same)",
    "trainer": "tests/gpu/trainer_step.py: steps of a policy update of a model of 2 billion parameters, beside whole\n"
               "scores and other libraries (needs torch, transformers and those libraries; set FLP_LIBRARY)",
    "portable": "tests/gpu/portable.py: sm_80's kernels beside the best product of mma.sync (needs nvcc, and CUTLASS'\n"
                "headers in cutlass of the folder of records)",
    "train": "runtime/python/examples/train_tiny_lm.py --compare (needs torch and transformers; set FLP_LIBRARY)",
    "grpo_tail": "runtime/python/examples/grpo_tiny.py --compare-tail: rewards of exact gradients and of a tail of 2^-9,\n"
                 "over three seeds; fails where they are further apart than seeds (the same)",
    "examples": "tests/gpu/examples.py: what every example shows (the same)",
    "selective": "tests/gpu/selective.py: selective log-softmax beside other ways (needs torch; set FLP_LIBRARY)",
    "engines": "tests/gpu/engines.py: what a rollout engine reports beside vLLM's functions (the same, and see there)",
    "mixed_bits": "tests/gpu/mixed_bits.py: operands of two dtypes beside torch.mm with a float32 result (the same)",
    "near_certain": "tests/gpu/near_certain.py: gradients of nearly certain rows in every mode beside float64 (the same)",
    "jax": "tests/gpu/jax_check.py: flp.jax beside the formula in JAX (needs jax; set FLP_LIBRARY)",
    "fragmentation": "tests/gpu/fragmentation.py, pictures in plots/ where there is matplotlib (needs torch; set FLP_LIBRARY)",
}


def select(only):
    """Names of parts and records, divided by commas -> {part: names of its records that are wanted}, in the order of
    PARTS; no names where a part has no records of its own. error: ValueError for a name that is none of them"""
    asked = set(only.split(","))
    accepted = [*PARTS, *(name for records in RECORDS.values() for name in records)]
    unknown = asked - set(accepted)
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: accepted are {', '.join(accepted)}")
    wanted = {part: [name for name in RECORDS.get(part, ()) if asked & {part, name}] for part in PARTS}
    return {part: names for part, names in wanted.items() if names or part in asked}

"""What a benchmark row is in words, and which rows may stand in one group.

Invariant: rows of a group differ in nothing but who ran, how and when; their times are ratios to the same products.
"""
import collections
import itertools
import math

PASSES = ("forward", "forward+backward", "backward", "step")
PLAIN = ("no loss", "all rows", "no gradients", "no entropy")  # words that need saying only where others differ
KEPT = ("save", "stream", "direction")  # modes that keep something between the passes


def is_ours(row):
    return row.peer == "flp" or row.peer.startswith("flp,")


def name_of(row):
    """Who computed a row. A tail leaves out what others compute, and has a name of its own."""
    if not is_ours(row) or row.mode != "tail":
        return row.peer
    power = math.log2(row.tail) if row.tail else 0
    value = "2^%.0f" % power if abs(power - round(power)) < 1e-3 else "%g" % row.tail
    return "flp, tail" + (" " + value if row.tail else "")


def special_of(row):
    """What a row was asked for beyond its pass, as words: such rows are no plain passes."""
    words = ["adapter of rank %d" % row.lora_rank] if row.lora_rank else []
    words += ["kept sets of %g ids" % row.kept] if row.kept is not None else []
    words += ["%d targets a row" % row.targets] if (row.targets or 1) > 1 else []
    best = [word for word, is_asked in (("best %s" % row.topk, row.topk), ("rank", row.rank)) if is_asked]
    words += [" and ".join(best)] if best else []
    words += ["statistics"] if row.statistics else []
    if row.mixed not in (None, "none"):
        words.append("%s weight, %s" % (row.weight_dtype, {"round": "rounded"}.get(row.mixed, row.mixed)))
    return words + ["adds to dW"] * bool(row.accumulate)


def traits_of(row):
    """The same, and for a plain row of a record of special ones what it is without."""
    words = special_of(row)
    words += ["no adapter"] if row.lora_rank == 0 else []
    words += ["one target a row"] if row.targets == 1 else []
    words += ["no best tokens, no rank"] if row.topk == 0 and not row.rank else []
    words += ["no statistics"] if row.statistics is False else []
    return words + (["exact"] if row.tail == 0 and row.mode not in KEPT else [])


def group_of(row):
    """What rows of a group have in common, in the order of the page."""
    rank = PASSES.index(row.case) if row.case in PASSES else len(PASSES)
    return (rank, row.case, row.D, row.V, row.N, -row.active, row.dtype or "", row.grads, row.loss or "",
            row.entropy or "none", row.data, row.gemms or 0, row.gpu)


def words_of(row):
    """What rows of a group have in common, in words by field."""
    return {"loss": "loss " + row.loss if row.loss else "no loss", "N": "N %d" % row.N, "D": "D %d" % row.D,
            "V": "V %d" % row.V, "dtype": row.dtype or "no dtype",
            "masked": "%.0f %% of rows masked" % (100 - 100 * row.active / row.N) if row.active < row.N else "all rows",
            "grads": "gradients of " + ", ".join(row.grads) if row.grads else "no gradients",
            "entropy": "no entropy" if row.entropy in (None, "none") else "entropy " + row.entropy,
            "data": row.data + " rows", "gpu": row.gpu or "GPU not recorded"}


def common_of(rows):
    """The words that most rows have, by field."""
    words = [words_of(row) for row in rows]
    return {field: collections.Counter(one[field] for one in words).most_common(1)[0][0] for field in words[0]}


def unlike(row, common):
    """The words of a row that most have not."""
    return [word for field, word in words_of(row).items() if word != common[field]]


def heading_of(row, common):
    """That of a group: the products of whose time its ratios are, and what is not as in most rows."""
    base = "%d product%s" % (row.gemms, "s" * (row.gemms > 1)) if row.gemms else "products not recorded"
    return " · ".join(["Beside " + base, *unlike(row, common)])


def labels_of(rows):
    """A label for each row of a group: name, mode and traits, then what tells rows of one label apart."""
    labels = [[name_of(row)] for row in rows]
    for label, row in zip(labels, rows):
        shows_mode = is_ours(row) and row.mode not in (None, "score", "tail", "listed")
        label += [row.mode] * shows_mode + traits_of(row)
    for tell in (lambda row: row.source.file.partition(".")[0], lambda row: (row.variant or "").replace(",", ", "),
                 lambda row: "run %d" % row.run if row.run else ""):
        for alike in _alike(labels):
            told = [tell(rows[i]) for i in alike]
            for i, word in zip(alike, told):
                labels[i] += [word] if word and len(set(told)) > 1 else []
    for alike in _alike(labels):
        for number, i in enumerate(alike, 1):
            labels[i] += ["%d of %d" % (number, len(alike))] if len(alike) > 1 else []
    return [" · ".join(label) for label in labels]


def _alike(labels):
    """[[index]] of equal labels."""
    places = {}
    for i, label in enumerate(labels):
        places.setdefault(tuple(label), []).append(i)
    return list(places.values())


def groups_of(rows):
    """[[row]] of the groups, in the order of the page."""
    return [list(group) for _, group in itertools.groupby(sorted(rows, key=group_of), group_of)]

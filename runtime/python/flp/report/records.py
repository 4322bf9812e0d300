"""Reads records: JSON of `flpgen bench`, `python -m flp.bench` and exported searches, SQLite of `flpgen tune`.

Invariants: a database is opened for reading only and nothing in it is run. What is read has the types of the tables
below: a text is printable, a number is finite, and what a record lacks is None.
"""
import collections
import json
import sqlite3
from pathlib import Path
from types import SimpleNamespace

SCHEMA_VERSION = 1
MAGIC = b"SQLite format 3\0"
INTEGER_MAX = 2**63 - 1
STATUSES = ("illegal", "pruned", "wrong", "failed", "waiting", "timed", "chosen")  # timed are the last two
REJECTED = STATUSES[:5]
KINDS = ("forward", "dz", "products", "layout", "forward_keep", "grad_hidden", "grad_weight")
# Modes have had letters.
MODES = {"F": "score", "R_VOCAB": "recompute-vocab", "R_ROWS": "recompute-rows", "R2": "recompute-split", "S": "save",
         "P": "stream"}


class Wrong(Exception):
    """A record that cannot be read as one: file, field, value and what is accepted."""


def refuse(where, value, accepted):
    raise Wrong("%s is %s (accepted: %s)" % (where, value, accepted))


# ---- fields: each is of a kind, (what is accepted, function that gives the value or None where it is refused)

def clean(text):
    """One line in which nothing hides: what is not printable is U+FFFD."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def _number(kinds, least, most):
    return lambda value: value if isinstance(value, kinds) and not isinstance(value, bool) and (
        least <= value <= most) else None


TEXT = "a text", lambda value: clean(value) if isinstance(value, str) else None
WORDS = "a list of texts", lambda value: tuple(map(clean, value)) if isinstance(value, list) and all(
    isinstance(word, str) for word in value) else None
FLAG = "true or false", lambda value: value if isinstance(value, bool) else None
NUMBER = "a number from 0 to 1e18", _number((int, float), 0, 1e18)
POSITIVE = "a number from 1e-9 to 1e12", _number((int, float), 1e-9, 1e12)
COUNT = "an integer from 0 to 2^63 - 1", _number(int, 0, INTEGER_MAX)
SIZE = "an integer from 1 to 2^63 - 1", _number(int, 1, INTEGER_MAX)
OBJECT = "an object", lambda value: value if isinstance(value, dict) else None
LIST = "a list", lambda value: value if isinstance(value, list) else None


def fields(kind, names):
    return dict.fromkeys(names.split(), kind)


RECORD = {**fields(TEXT, "gpu driver date sources_hash command kind"), "N": SIZE, "spec": OBJECT, "rows": LIST,
          **fields(LIST, "bare searches")}
ROW = {**fields(TEXT, "case peer dtype weight_dtype mixed entropy loss reason variant data mode"), "grads": WORDS,
       "who": TEXT, **fields(OBJECT, "entropies tail_report"), **fields(SIZE, "N D V"),
       **fields(FLAG, "rank statistics accumulate"),
       **fields(COUNT, "active_rows gemms run lora_rank targets topk list_ids"),
       **fields(POSITIVE, "ms bare_ms first_ms"),
       **fields(NUMBER, "ms_low ms_high extra_bytes result_bytes kept tail logprob_error")}
PRODUCT = {"product": TEXT, "N": SIZE, "ms": POSITIVE}
SPEC = {**fields(TEXT, "text dtype entropy grads model"), **fields(SIZE, "vocab hidden rows"),
        **fields(COUNT, "id run")}
SEARCH = {**fields(TEXT, "started finished command effort chosen"), "seed": COUNT, "bare_ms": POSITIVE}
CANDIDATE = {**fields(TEXT, "kind tune reason status"), **fields(COUNT, "id spec chunk_rows chunk_vocab rounds"),
             **fields(POSITIVE, "ms ratio"), **fields(NUMBER, "ms_low ms_high predicted_ms error clock_mhz power_w")}
TABLES = {
    "run": {**fields(TEXT, "started finished command gpu flp_version sources effort"),
            **fields(COUNT, "id multiprocessors driver seed"), "budget_s": NUMBER},
    "spec": SPEC,
    "candidate": CANDIDATE,
    "bare": {"product": TEXT, **fields(COUNT, "id spec"), "rows": SIZE, **fields(POSITIVE, "ms"),
             **fields(NUMBER, "ms_low ms_high")}}


def taken(where, given, kinds):
    """The fields of an object, None for what it lacks. where: what names of fields stand behind. error: Wrong"""
    if not isinstance(given, dict):
        refuse(where.rstrip(". ") if where.endswith(".") else where + "the document", repr(given)[:80], "an object")
    found = SimpleNamespace()
    for name, (accepted, take) in kinds.items():
        value = given.get(name)
        setattr(found, name, None if value is None else take(value))
        if value is not None and getattr(found, name) is None:
            refuse(where + name, repr(value)[:80], accepted + ", or null")
    return found


class Records:
    """What was read. sources: a file, or a run of one, and where it came from; runs, specs, candidates and bares (GEMM
    baselines of a search): tables of the tuner, with indices in place of ids; rows: of benchmarks; left_out: rows that
    belong to records of another kind."""

    def __init__(self):
        self.sources, self.runs, self.specs, self.candidates, self.bares, self.rows = [], [], [], [], [], []
        self.left_out = 0
        self._timed = collections.defaultdict(list)  # candidates that have a time, by the index of their spec and kind

    def read(self, path):
        """Adds a file. error: Wrong, OSError"""
        with open(path, "rb") as file:
            text = file.read(len(MAGIC))
            is_database = text == MAGIC
            text += b"" if is_database else file.read()
        if is_database:
            self._read_database(path)
        else:
            self._take_record(path, parsed(path, text))

    # ---- JSON

    def _take_record(self, path, document):
        record = taken("%s: " % path, document, RECORD)
        if record.rows is None:
            refuse("%s: rows" % path, "missing", "a list of benchmark rows or of candidates")
        source = SimpleNamespace(file=clean(Path(path).name), what="tuning" if record.searches else "benchmark",
                                 gpu=record.gpu, driver=record.driver, date=record.date, sources=record.sources_hash,
                                 command=record.command)
        self.sources.append(source)
        if record.searches:
            self._take_search(path, record, source)
            return
        baselines = [taken("%s: bare[%d]." % (path, i), one, PRODUCT) for i, one in enumerate(record.bare or ())]
        for i, row in enumerate(record.rows):
            self._take_row("%s: rows[%d]." % (path, i), row, source, baselines)

    def _take_row(self, where, given, source, baselines):
        """A row that names no case or shape, nor a time or a reason for having none, is of another kind; so is one of
        two heads."""
        if not isinstance(given, dict) or not {"case", "N", "D", "V"} <= set(given) or "teacher_D" in given:
            self.left_out += 1
            return
        row = taken(where, given, ROW)
        if None in (row.case, row.N, row.D, row.V) or not (row.ms or row.reason):
            self.left_out += 1
            return
        row.peer = row.peer or row.who or "flp"
        row.mode = MODES.get(row.mode, row.mode)
        row.data = row.data or "random"  # as older records have them without saying so
        row.grads, row.active = row.grads or (), row.active_rows or row.N
        row.source, row.gpu = source, source.gpu or ""
        row.product_ms = min((one.ms for one in baselines if one.ms and (one.product, one.N) == ("scores", row.N)),
                             default=None)
        row.median_entropy = getattr(taken(where + "entropies.", row.entropies or {}, {"0.5": NUMBER}), "0.5")
        row.tail_report = taken(where + "tail_report.", row.tail_report or {}, fields(NUMBER, "dense_rows columns"))
        self.rows.append(row)

    def _take_search(self, path, record, source):
        """An exported search: its timed candidates. Of several of one head the first is drawn."""
        search = taken("%s: searches[0]." % path, record.searches[0], SEARCH)
        spec = taken("%s: spec." % path, record.spec or {}, SPEC)
        kind, spec.rows, spec.run = record.kind or "forward", record.N, len(self.runs)
        self.runs.append(SimpleNamespace(id=len(self.runs) + 1, file=source.file, started=search.started,
                                         finished=search.finished, command=search.command, gpu=source.gpu,
                                         flp_version=None, sources=source.sources, effort=search.effort,
                                         seed=search.seed))
        self.bares.append(SimpleNamespace(spec=len(self.specs), product="scores", rows=record.N, ms=search.bare_ms))
        for i, given in enumerate(record.rows):
            candidate = taken("%s: rows[%d]." % (path, i), given, CANDIDATE)
            if candidate.tune is None or candidate.ms is None:
                self.left_out += 1
                continue
            candidate.spec, candidate.kind = len(self.specs), kind
            candidate.status = "chosen" if candidate.tune == search.chosen else "timed"
            self._add(candidate)
        self.specs.append(spec)

    # ---- SQLite

    def _read_database(self, path):
        database = sqlite3.connect(Path(path).resolve().as_uri() + "?mode=ro", uri=True, timeout=5)  # tune may write
        database.text_factory = lambda text: text.decode(errors="replace")
        database.row_factory = sqlite3.Row
        try:
            database.execute("PRAGMA trusted_schema = 0")
            check(path, database)
            tables = {name: table_of(path, database, name) for name in TABLES}
        except sqlite3.Error as error:
            raise Wrong("%s: cannot be read as tuning records: %s" % (path, error)) from error
        finally:
            database.close()
        self._take_tables(path, tables)

    def _take_tables(self, path, tables):
        runs = {run.id: i for i, run in enumerate(tables["run"], len(self.runs))}
        specs = {spec.id: i for i, spec in enumerate(tables["spec"], len(self.specs))}
        for run in tables["run"]:
            run.file = clean(Path(path).name)
            driver = "CUDA %d.%d" % (run.driver // 1000, run.driver % 1000 // 10) if run.driver else None
            self.sources.append(SimpleNamespace(file=run.file, what="tuning", gpu=run.gpu, driver=driver,
                                                date=run.started, sources=run.sources, command=run.command))
        for name, field, ids in (("spec", "run", runs), ("candidate", "spec", specs), ("bare", "spec", specs)):
            for row in tables[name]:
                if getattr(row, field) not in ids:
                    refuse("%s: table '%s', id %s: %s" % (path, name, row.id, field), getattr(row, field),
                           "one that table '%s' has" % field)
                setattr(row, field, ids[getattr(row, field)])
        for row in tables["candidate"]:
            if row.status not in STATUSES:
                refuse("%s: table 'candidate', id %s: status" % (path, row.id), repr(row.status), ", ".join(STATUSES))
            self._add(row)
        self.runs += tables["run"]
        self.specs += tables["spec"]
        self.bares += tables["bare"]

    def _add(self, candidate):
        self.candidates.append(candidate)
        if candidate.status not in REJECTED and candidate.ms:
            self._timed[candidate.spec, candidate.kind].append(candidate)

    # ---- what charts of tuning ask

    def best(self, spec, kind):
        """The chosen candidate of a kind, else the fastest of those timed longest; None without any."""
        return min(self.timed(spec, kind), default=None,
                   key=lambda one: (one.status != "chosen", -(one.rounds or 0), one.ms))

    def timed(self, spec, kind):
        """The candidates of a kind of a specialisation that have a time."""
        return self._timed.get((spec, kind), [])

    def pass_of(self, spec, kind):
        """What is timed for a kind of kernel: "forward pass", "backward pass", "training step", "step"."""
        if kind == "forward":
            return "forward pass"
        if kind == "dz" or self.best(spec, "forward_keep") is None:
            return "backward pass"
        if " loss=" in (self.specs[spec].text or ""):
            return "step"
        return {"forward_keep": "forward pass", "layout": "backward pass"}.get(kind, "training step")

    def baseline_ms(self, spec, kind):
        """Milliseconds of the GEMM baselines of that pass, None if one was not timed."""
        found, head = {}, self.specs[spec]
        for one in self.bares:
            if one.spec == spec and one.rows == head.rows:
                found.setdefault(one.product, one.ms)
        products = ["grad_" + name for name in ("hidden", "weight") if name in (head.grads or "")]
        makes_all = kind == "forward_keep" and " mode=direction" in (head.text or "")
        if self.pass_of(spec, kind) == "forward pass" and not makes_all:
            products = []
        elif not products:
            return None
        times = [found.get(product) for product in ["scores", *products]]
        return None if None in times else sum(times)


def parsed(path, text):
    """A JSON document. error: Wrong"""
    def unique(pairs):
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a name stands twice in one object")
        return found

    def no_number(word):
        raise ValueError("%s is no JSON" % word)
    try:
        return json.loads(text.decode(), object_pairs_hook=unique, parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        raise Wrong("%s: neither tuning records nor JSON: %s" % (path, clean(str(error)))) from error


def check(path, database):
    """A whole file of plain tables of this version: a view could run anything for any time. error: Wrong"""
    version, = database.execute("PRAGMA user_version").fetchone()
    if version != SCHEMA_VERSION:
        refuse("%s: the version of the tuning records" % path, version, SCHEMA_VERSION)
    for name in TABLES:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ? AND rootpage > 0",
                                [name]).fetchone():
            raise Wrong("%s: no tuning records: it has no table '%s'" % (path, name))
    said = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    if said != "ok":
        raise Wrong("%s: the file is damaged: %s" % (path, clean(said)))


def table_of(path, database, name):
    query = "SELECT %s FROM %s ORDER BY id" % (", ".join(["id", *(key for key in TABLES[name] if key != "id")]), name)
    return [taken("%s: table '%s', id %s: " % (path, name, row["id"]), dict(row), TABLES[name])
            for row in database.execute(query)]

"""The Markdown documents of the tree and what stands in their fenced blocks, for the tests that run it."""
import os
import re
import shlex
from pathlib import Path

TREE = Path(os.environ.get("FLP_TEST_TREE") or Path(__file__).resolve().parents[2])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)
HEREDOC = re.compile(r"<<'(\w+)'")
NEEDS = re.compile(r"^# needs (.*)\n")


class Block:
    """A fenced block. name: for a test's id; needs: what its first comment says that it needs, or """""

    def __init__(self, document, text, start, language, body):
        self.document, self.language, self.text = document, language, body
        self.name = f"{document.relative_to(TREE)}:{text.count(chr(10), 0, start) + 2}"
        found = NEEDS.match(body) if language == "sh" else None
        self.needs = found.group(1) if found else ""

    def commands(self):
        """Of a sh block -> the text of each command, with what its heredoc holds, without its comment."""
        lines = iter(self.text.splitlines())
        for line in lines:
            end = HEREDOC.search(line)
            while end:
                following = next(lines)
                line += "\n" + following
                if following == end.group(1):
                    break
            if line.strip() and not line.startswith("#"):
                yield line if end else re.sub(r"\s+# .*$", "", line)


def documents():
    """Every Markdown file of the tree; what a build or a cache made is none, and is not walked: it may change."""
    found = []
    for folder, folders, files in os.walk(TREE):
        folders[:] = [name for name in folders if name != "build" and not name.startswith((".", "build-"))]
        found += [Path(folder, name) for name in files if name.endswith(".md")]
    return sorted(found)


def blocks(*languages):
    """Blocks of these languages in all documents, in order."""
    found = []
    for document in documents():
        text = document.read_text()
        found += [Block(document, text, match.start(), *match.groups()) for match in FENCE.finditer(text)]
    return [block for block in found if block.language in languages]


def python_block(words):
    """The text of the one Python block that holds these words."""
    block, = [block for block in blocks("python") if words in block.text]
    return block.text


def words_of(command):
    """A command's words; those of a && or | apart: [[word]]"""
    parts, words = [], shlex.split(command.split("\n")[0], comments=True)
    for word in words:
        if word in ("&&", "|") or not parts:
            parts.append([])
        if word not in ("&&", "|"):
            parts[-1].append(word)
    return parts

"""flpgen sign and verify: what minisign itself makes of our files and we of its, and what is refused."""
import base64
import functools
import re
import shutil
import subprocess

import pytest

from flpgen_pack_tool import build, pack
from flpgen_tool import flpgen, needs_flpgen, succeed

pytestmark = needs_flpgen

MINISIGN = shutil.which("minisign")
needs_minisign = pytest.mark.skipif(not MINISIGN, reason="minisign is not installed")
SEED = bytes(range(32)).hex()
PUBLIC = "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"  # of that seed, by RFC 8032
OTHER = "29acbae141bccaf0b22e1a94d34d0bc7361e526d0bfe12c89794bc9322966dd7"  # of bytes 2 to 33

# Made by minisign 0.11: a key without a password, and its signature of b"hello\n".
THEIR_LINE = "RWS8gPSn5JVK605gIt7uN9ciQb8UxrTLF2I339a8dO3RTmwBJ4i38yxF"
THEIR_SEED = "085dab4daa50cda4bb0e3c8e2b5cb6cb42820ac5974953a50782a334ac345bac"
THEIR_SECRET = b"Ed\0\0B2" + bytes(48) + base64.b64decode(THEIR_LINE)[2:10] + bytes.fromhex(THEIR_SEED) + \
    base64.b64decode(THEIR_LINE)[10:] + bytes(32)
THEIR_SIGNATURE = """untrusted comment: signature from minisign secret key
RUS8gPSn5JVK60/RDzWfL7t8yQ1Gekp5Dr/F+rs3OXqImmjC8eun3iDoDulj12g9SUaPjitLAeE+y1vQiKsFxI8e+AaSztt5iwY=
trusted comment: trusted here
CX1jQ85J8GZo6TVygGcQgQtYGIF5A5BB3TEHH0jepd2FtxGA/UKJJ4R6fL2v7xmqEe1cbspihc9GOFIS1T0BBA==
"""


def private(path, text):
    path.write_text(text)
    path.chmod(0o600)


def minisign_key(raw):
    return "untrusted comment: minisign encrypted secret key\n" + base64.b64encode(raw).decode() + "\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a file and two keys."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.whl").write_bytes(b"hello\n")
    private(tmp_path / "key.hex", SEED)
    private(tmp_path / "their.key", minisign_key(THEIR_SECRET))
    return tmp_path


sign = functools.partial(succeed, "sign")


def minisign(*arguments):
    return subprocess.run([MINISIGN, *map(str, arguments)], capture_output=True, text=True, input="\n\n", timeout=60)


# ---- without the tool: what it made before

def test_a_signature_of_minisign_is_verified(here):
    (here / "a.whl.minisig").write_text(THEIR_SIGNATURE)
    done = flpgen("verify", "--trust", THEIR_LINE, "a.whl")
    assert (done.code, done.out) == (0, "a.whl: signed with key EB4A95E4A7F480BC: trusted here\n")
    (here / "pub").write_text(f"untrusted comment: minisign public key EB4A95E4A7F480BC\n{THEIR_LINE}\n")
    assert flpgen("verify", "--trust", "pub", "a.whl").out == done.out
    (here / "a.whl.minisig").write_text(THEIR_SIGNATURE.replace("\n", "\r\n"))
    assert flpgen("verify", "--trust", THEIR_LINE, "a.whl").out == done.out


def test_a_key_of_minisign_signs_as_minisign_does(here):
    """Ed25519 has one signature of a key and a message."""
    sign("--key", "their.key", "--comment", "trusted here", "a.whl")
    lines = (here / "a.whl.minisig").read_text().splitlines()
    assert lines[0] == "untrusted comment: signature from flpgen, key EB4A95E4A7F480BC"
    assert lines[1:] == THEIR_SIGNATURE.splitlines()[1:]


def test_every_form_of_a_key_is_the_same(here):
    """Hex and PEM; the signature of a hex key is verified with its hex digits, its line, and PEM."""
    private(here / "key.pem", "-----BEGIN PRIVATE KEY-----\n%s\n-----END PRIVATE KEY-----\n" % base64.b64encode(
        bytes.fromhex("302e020100300506032b657004220420") + bytes(range(32))).decode())
    made = {}
    for key in ("key.hex", "key.pem"):
        document = sign("--key", key, "--public", "release.pub", "--json", "a.whl", SOURCE_DATE_EPOCH="7").json()
        made[key] = (document, (here / "a.whl.minisig").read_bytes(), (here / "release.pub").read_text())
    assert made["key.hex"] == made["key.pem"]
    assert document["public_key"] == PUBLIC
    assert document["files"] == [{"file": "a.whl", "signature": "a.whl.minisig"}]
    pem = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAA6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=\n-----END PUBLIC KEY-----\n"
    (here / "pub.pem").write_text(pem)
    for trusted in (PUBLIC, document["minisign_key"], "release.pub", "pub.pem"):
        done = succeed("verify", "--trust", OTHER, "--trust", trusted, "--json", "a.whl")
        assert done.json() == {"files": [{"file": "a.whl", "key_id": document["key_id"], "signed_by": PUBLIC,
                                          "trusted_comment": "timestamp:7\tfile:a.whl\thashed"}]}


def test_a_pack_takes_the_same_keys(here):
    signed = build(here / "a.flpp", "--vocab", 1000, "--hidden", 64, "--arch", "sm_80", "--sign", "their.key")
    assert pack("verify", signed, "--trust", THEIR_LINE, "--json").json()["trusted"] is True
    assert pack("verify", signed, "--trust", PUBLIC).code == 1


def test_files_of_any_size(here):
    for size in (0, 1, 65535, 65536, 65537, 300000):
        (here / "many").write_bytes(bytes(size))
        sign("--key", "key.hex", "many")
        assert flpgen("verify", "--trust", PUBLIC, "many").code == 0


# ---- what fails, with which exit status

def fails(code, message, *arguments):
    done = flpgen("verify", *(arguments or ("--trust", PUBLIC)), "a.whl")
    assert (done.code, done.out) == (code, ""), done.err
    assert message in done.err, done.err
    return done


def test_what_is_not_signed_is_refused(here):
    fails(4, "a.whl.minisig: cannot open")
    sign("--key", "key.hex", "--comment", "flp", "a.whl")
    text = (here / "a.whl.minisig").read_text()
    key = re.search("key ([0-9A-F]{16})\n", text)[1]
    fails(1, f"a.whl: none of the trusted keys has signed it; the signature names key {key}", "--trust", THEIR_LINE)
    (here / "a.whl.minisig").write_text(text.replace("trusted comment: flp", "trusted comment: fip"))
    fails(1, "a.whl.minisig: the trusted comment is not what was signed with the file")
    (here / "a.whl.minisig").write_text(text)
    (here / "a.whl").write_bytes(b"hellp\n")
    fails(1, f"a.whl is not what key {key} has signed")
    assert flpgen("verify", "--trust", PUBLIC, "a.whl", "--json").json()["error"]["exit"] == 1
    (here / "a.whl").unlink()
    fails(4, "a.whl: cannot open")


def test_no_damaged_signature_is_accepted(here):
    sign("--key", "key.hex", "--comment", "flp", "a.whl")
    whole = (here / "a.whl.minisig").read_bytes()
    second = whole.index(b"\n") + 1
    for at in range(second, len(whole) - 1, 3):  # the first line is a comment that nobody signed
        (here / "a.whl.minisig").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:])
        done = flpgen("verify", "--trust", PUBLIC, "a.whl")
        # the id is a name and is not signed, as minisign has it
        named = base64.b64decode(whole.splitlines()[1])[2:10]
        try:
            again = base64.b64decode((here / "a.whl.minisig").read_bytes().splitlines()[1], validate=True)
            only_the_id = again[:2] == b"ED" and again[2:10] != named and \
                again[10:] == base64.b64decode(whole.splitlines()[1])[10:]
        except (ValueError, IndexError):
            only_the_id = False
        assert (done.code == 0) == only_the_id, (at, done.err)
    for text in (b"", whole[:second], whole[:-40], whole + b"more\n", whole.replace(b"trusted comment: f", b"trusted: f")):
        (here / "a.whl.minisig").write_bytes(text)
        fails(4, "a.whl.minisig is no signature of minisign")


def test_the_key_that_has_signed_is_named(here):
    """The id in the signature is not signed: with a key that has no id of its own, it is not what is shown."""
    sign("--key", "key.hex", "a.whl")
    key = flpgen("verify", "--trust", PUBLIC, "a.whl", "--json").json()["files"][0]["key_id"]
    lines = (here / "a.whl.minisig").read_text().splitlines(keepends=True)
    raw = base64.b64decode(lines[1])
    lines[1] = base64.b64encode(raw[:2] + b"\xde\xad\xbe\xef" * 2 + raw[10:]).decode() + "\n"
    (here / "a.whl.minisig").write_text("".join(lines))
    done = flpgen("verify", "--trust", PUBLIC, "a.whl")
    assert done.code == 0 and f"key {key}" in done.out, done.out


def test_nothing_hides_behind_a_byte_0(here):
    sign("--key", "key.hex", "a.whl")
    whole = (here / "a.whl.minisig").read_bytes()
    (here / "a.whl.minisig").write_bytes(whole + b"\0more")
    fails(4, f"a.whl.minisig: byte {len(whole)} is 0; text has none")
    private(here / "key.hex", SEED + "\0zz")
    done = flpgen("sign", "--key", "key.hex", "a.whl")
    assert done.code != 0 and f"key.hex: byte {len(SEED)} is 0; text has none" in done.err


@pytest.mark.parametrize("arguments, message", [
    (["sign", "--key", "key.hex", "--comment", "two\nlines", "a.whl"],
     "trusted comment: byte 0x0a; --comment takes one line of text"),
    (["sign", "--key", "key.hex", "a\n.whl"], "trusted comment: byte 0x0a; --comment takes one line of text"),
    (["sign", "--key", "key.hex", "--comment", "x" * 1024, "a.whl"],
     "trusted comment: 1024 bytes; --comment takes at most 1023"),
    (["verify", *["--trust", PUBLIC] * 17, "a.whl"], "is one key too many; 16 are accepted"),
])
def test_refused(here, arguments, message):
    done = flpgen(*arguments)
    assert (done.code, done.out) == (2, "") and message in done.err, done.err
    assert not (here / "a.whl.minisig").exists()


def test_keys_that_are_none(here):
    halves = bytearray(THEIR_SECRET)
    halves[70] ^= 1  # a half of the key is not of the other
    for text in (minisign_key(THEIR_SECRET[:-1]), minisign_key(halves), minisign_key(b"ED" + THEIR_SECRET[2:]), THEIR_LINE, ""):
        private(here / "their.key", text)
        done = flpgen("sign", "--key", "their.key", "a.whl")
        assert done.code == 2 and "--key: their.key is no Ed25519 private key" in done.err, done.err
    private(here / "their.key", minisign_key(b"EdSc" + THEIR_SECRET[4:]))
    done = flpgen("sign", "--key", "their.key", "a.whl")
    assert done.code == 2 and "--key: their.key has a password; accepted are keys without one" in done.err


# ---- with the tool itself

@needs_minisign
def test_minisign_verifies_what_flpgen_signs(here):
    for key in ("key.hex", "their.key"):
        document = sign("--key", key, "--public", "release.pub", "--comment", "für 0.1.0", "a.whl", "--json").json()
        for way in (["-P", document["minisign_key"]], ["-p", "release.pub"]):
            done = minisign("-V", *way, "-m", "a.whl")
            assert done.returncode == 0, done.stderr
            assert "Trusted comment: für 0.1.0" in done.stdout
        assert minisign("-V", "-H", "-p", "release.pub", "-m", "a.whl").returncode == 0  # of the hash
    assert minisign("-V", "-P", THEIR_LINE, "-m", "key.hex", "-x", "a.whl.minisig").returncode != 0


@needs_minisign
def test_flpgen_verifies_what_minisign_signs(here):
    assert minisign("-G", "-W", "-p", "new.pub", "-s", "new.key").returncode == 0
    assert minisign("-S", "-s", "new.key", "-t", "of minisign", "-m", "a.whl").returncode == 0
    assert flpgen("verify", "--trust", "new.pub", "a.whl").out.endswith(": of minisign\n")
    assert minisign("-S", "-s", "new.key", "-m", "a.whl").returncode == 0  # with minisign's own comment
    assert re.search(r"key [0-9A-F]{16}: timestamp:\d+\tfile:a.whl", flpgen("verify", "--trust", "new.pub", "a.whl").out)
    public = (here / "new.pub").read_text()
    assert sign("--key", "new.key", "--public", "again.pub", "--json").json()["minisign_key"] == public.split()[-1]
    assert (here / "again.pub").read_text().split()[-1] == public.split()[-1]
    assert minisign("-S", "-l", "-s", "new.key", "-m", "a.whl").returncode == 0
    fails(4, "a.whl.minisig has minisign's older form; accepted is the one of its hash", "--trust", "new.pub")

"""What is inside the wheel besides flp: the linked libraries with versions and licences of the packages they came from,
and the CycloneDX document that lists them."""
import hashlib
import os
import re
import uuid
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import ziglang
from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

COMMON_LICENCES = Path("/usr/share/common-licenses")

# Name, the Debian package whose version and copyright file hold, its kind of licence (SPDX), the source package's purl.
PARTS = [
    ("llvm", "llvm-19-dev", "Apache-2.0 WITH LLVM-exception", "pkg:deb/debian/llvm-toolchain-19"),
    ("lua", "liblua5.4-dev", "MIT", "pkg:deb/debian/lua5.4"),
    ("libsodium", "libsodium-dev", "ISC", "pkg:deb/debian/libsodium"),
    ("zstd", "libzstd-dev", "BSD-3-Clause", "pkg:deb/debian/libzstd"),
    ("zlib", "zlib1g-dev", "Zlib", "pkg:deb/debian/zlib"),
    ("jansson", "libjansson-dev", "MIT", "pkg:deb/debian/jansson"),
    ("sqlite", "libsqlite3-dev", "blessing", "pkg:deb/debian/sqlite3"),
    ("libstdcxx", "libstdc++-12-dev", "GPL-3.0-or-later WITH GCC-exception-3.1", "pkg:deb/debian/gcc-12"),
]
DOCUMENTS = {"libstdc++-12-dev": "gcc-12-base"}


@dataclass(frozen=True)
class Part:
    """One linked library: the package that it is from, and the text of its licence."""
    name: str
    package: str
    licence: str
    purl: str
    version: str
    text: str


def debian_licence(root, package):
    """Debian's copyright file, with the texts that it only names."""
    text = (root / "usr/share/doc" / DOCUMENTS.get(package, package) / "copyright").read_text(errors="replace")
    for name in sorted(set(re.findall(r"common-licenses/((?:Apache|CC0|GPL)-[0-9.]*[0-9])", text))):
        text += f"\n---- {name} ----\n\n{(COMMON_LICENCES / name).read_text()}"
    return text


def compiler_part():
    """What zig cc adds of its own: functions that processors lack, and the C library's entry code."""
    folder = Path(ziglang.__file__).parent
    text = (folder / "LICENSE").read_text()
    return Part("zig", "ziglang", "MIT", "pkg:pypi/ziglang", metadata.version("ziglang"), text)


def linked_parts(sysroot):
    """The parts with the versions of the packages that the sysroot was made of: names of files in debs/."""
    versions = {}
    for deb in (sysroot / "debs").glob("*.deb"):
        package, version, _ = deb.name[:-len(".deb")].split("_")
        versions[package] = version.replace("%3a", ":")
    return [Part(name, package, licence, purl, versions[package], debian_licence(sysroot / "root", package))
            for name, package, licence, purl in PARTS] + [compiler_part()]


def component(name, version, licence, purl, **more):
    """One library of the document; its reference is its purl."""
    purl = PackageURL.from_string(f"{purl}@{version}")
    return Component(name=name, version=version, type=ComponentType.LIBRARY, bom_ref=str(purl), purl=purl,
                     licenses=[LicenseFactory().make_from_string(licence)], **more)


def name_and_version(wheel):
    """From the METADATA of an unpacked wheel."""
    (path,) = wheel.glob("*.dist-info/METADATA")
    fields = dict(line.split(": ", 1) for line in path.read_text().split("\n\n")[0].splitlines() if ": " in line)
    return fields["Name"], fields["Version"]


def binaries(wheel):
    """{name in the wheel: SHA-256} of libraries, command and packs."""
    folders = ("lib", "bin", "packs")
    return {str(path.relative_to(wheel)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(wheel.rglob("*"))
            if path.is_file() and path.parent.name in folders and path.name != "libflp.so"}


def write(wheel, parts):
    """The CycloneDX document of an unpacked wheel, as JSON. Its number and its time depend on what it says alone."""
    name, version = name_and_version(wheel)
    own = component(name, version, "Apache-2.0", f"pkg:pypi/{name}")
    files = binaries(wheel)
    for path, digest in files.items():
        own.components.add(Component(name=path, type=ComponentType.FILE, bom_ref=f"file:{path}",
                                     hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)]))
    inside = [component(part.name, part.version, part.licence, part.purl,
                        description=f"linked statically, of the package {part.package}") for part in parts]
    said = repr((name, version, files, [(part.name, part.version) for part in parts]))
    bom = Bom(components=inside, serial_number=uuid.uuid5(uuid.NAMESPACE_URL, said), metadata=BomMetaData(
        component=own, timestamp=datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), timezone.utc)))
    bom.register_dependency(own, inside)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"

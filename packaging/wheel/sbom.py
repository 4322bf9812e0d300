"""What is inside the wheel besides flp: the linked libraries with versions and licences of the packages they came from,
and the CycloneDX document that lists them."""
import hashlib
import os
import re
import uuid
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

COMMON_LICENCES = Path("/usr/share/common-licenses")

# Name, the Debian package whose version and copyright file hold, its kind of licence (SPDX), where it is linked into.
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
    """One linked library: its package's version and the text of its licence."""
    name: str
    package: str
    licence: str
    purl: str
    version: str
    root: Path

    def licence_text(self):
        """Debian's copyright file, with the texts that it only names."""
        folder = DOCUMENTS.get(self.package, self.package)
        text = (self.root / "usr/share/doc" / folder / "copyright").read_text(errors="replace")
        named = sorted(set(re.findall(r"common-licenses/((?:Apache|CC0|GPL)-[0-9.]*[0-9])", text)))
        for name in named:
            text += f"\n---- {name} ----\n\n{(COMMON_LICENCES / name).read_text()}"
        return text


def linked_parts(sysroot):
    """The parts with the versions of the packages that the sysroot was made of: names of files in debs/."""
    versions = {}
    for deb in (sysroot / "debs").glob("*.deb"):
        package, version, _ = deb.name[:-len(".deb")].split("_")
        versions[package] = version.replace("%3a", ":")
    return [Part(name, package, licence, purl, versions[package], sysroot / "root")
            for name, package, licence, purl in PARTS]


def component(name, version, licence, purl, **more):
    """One entry of the document; its reference is its purl."""
    return Component(name=name, version=version, type=ComponentType.LIBRARY, bom_ref=purl, purl=PackageURL.from_string(purl),
                     licenses=[LicenseFactory().make_from_string(licence)], **more)


def metadata_of(wheel):
    """Name and version from the unpacked wheel's METADATA."""
    (path,) = wheel.glob("*.dist-info/METADATA")
    fields = dict(line.split(": ", 1) for line in path.read_text().split("\n\n")[0].splitlines() if ": " in line)
    return fields["Name"], fields["Version"]


def write(wheel, parts):
    """The CycloneDX document of the unpacked wheel, as JSON. Its number and time depend on what it says alone."""
    name, version = metadata_of(wheel)
    own = component(name, version, "Apache-2.0", f"pkg:pypi/{name}@{version}")
    inside = [component(part.name, part.version, part.licence,
                        str(PackageURL.from_string(f"{part.purl}@{part.version}")),
                        description=f"linked statically, from Debian's {part.package}") for part in parts]
    for path in sorted(wheel.rglob("*")):
        if path.is_file() and path.parent.name in ("lib", "bin", "packs") and path.name != "libflp.so":
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            own.components.add(Component(name=str(path.relative_to(wheel)), type=ComponentType.FILE, bom_ref=f"file:{path.name}",
                                         hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)]))
    time = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), timezone.utc)
    number = uuid.uuid5(uuid.NAMESPACE_URL, repr([(each.bom_ref.value, sorted(map(repr, each.components))) for each in (own, *inside)]))
    bom = Bom(components=inside, metadata=BomMetaData(component=own, timestamp=time), serial_number=number)
    bom.register_dependency(own, inside)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"

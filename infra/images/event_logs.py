"""What Spark needs before it writes its event logs to the cluster's store: `python event_logs.py FOLDER [TRUST_STORE]`.

The folder, because neither a driver nor the history server makes one. Where the store's certificate is signed by an
authority of one's own (`store.ssl_cafile`), a trust store that has that one beside the public ones: Java reads no PEM.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from penstock.errors import PenstockError
from penstock.platform.buckets import make_folder
from penstock.settings import load_settings

PASSWORD = "changeit"  # of every trust store of public certificates; it guards nothing


def make_trust_store(authorities: bytes, path: Path) -> None:
    """Java's own trust store and these certificates, as one."""
    properties = subprocess.run(
        ["java", "-XshowSettings:properties", "-version"], check=True, capture_output=True, text=True
    )
    (home,) = re.findall(r"java\.home = (.*)", properties.stderr)
    shutil.copyfile(f"{home}/lib/security/cacerts", path)
    path.chmod(0o600)
    found = re.findall(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", authorities, re.DOTALL)
    for number, certificate in enumerate(found):
        command = ["keytool", "-importcert", "-noprompt", "-alias", f"store-{number}", "-storepass", PASSWORD]
        subprocess.run([*command, "-keystore", str(path)], input=certificate, check=True, capture_output=True)


def main(folder: str, trust_store: str = "") -> None:
    """Make what is missing; once more it changes nothing."""
    store = load_settings().store
    authorities = store.authorities()
    if authorities is not None and trust_store:
        make_trust_store(authorities, Path(trust_store))
    make_folder(store, folder)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except PenstockError as error:
        sys.exit(str(error))

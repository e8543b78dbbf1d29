"""What Java trusts where an authority of one's own has signed the store's certificate: `python trust_store.py FILE`.

The file is a trust store that has that authority (`store.ssl_cafile`) beside the public ones: Java reads no PEM. Spark's
own `s3a://` wants it wherever a JVM of Spark runs: drivers, executors and the history server.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from penstock.errors import PenstockError
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


if __name__ == "__main__":
    try:
        known = load_settings().store.authorities()
    except PenstockError as error:
        sys.exit(str(error))
    if known is None:
        sys.exit("store.ssl_cafile is not set: there is no authority to trust")
    make_trust_store(known, Path(sys.argv[1]))

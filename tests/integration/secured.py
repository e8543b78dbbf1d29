"""Servers that speak TLS and ask for a login, with certificates of the test's own making."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from penstock.kafka.clients import confluent_options
from penstock.platform.free_ports import HOST, free_port
from penstock.platform.kafka import KafkaNode, KafkaServer, new_cluster_id
from penstock.platform.minio import MinioServer
from penstock.platform.parts import cached_parts
from penstock.settings import KafkaSettings, Secret, StoreSettings

USER, PASSWORD, KEY_PASSWORD = "ann", "pa55word", "k3y-word"
_NEW: Final = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-days", "2")


@dataclass(frozen=True)
class Certificates:
    """Of a server on loopback and a client of it, signed by an authority that nobody else knows."""

    folder: Path
    """Beside `ca.key`, `server-chain.pem` (key and certificate, as Kafka wants them), `client-encrypted.key`."""

    @property
    def authority(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def stranger(self) -> Path:
        """Another authority, which has signed nothing."""
        return self.folder / "stranger.pem"

    def certificate(self, of: str = "server") -> Path:
        return self.folder / f"{of}.pem"

    def key(self, of: str = "server") -> Path:
        return self.folder / f"{of}.key"


def make_certificates(folder: Path) -> Certificates:
    """Made by openssl."""
    made = Certificates(folder)
    _run(*_NEW, "-nodes", "-subj", "/CN=authority", "-keyout", folder / "ca.key", "-out", made.authority)
    _run(*_NEW, "-nodes", "-subj", "/CN=stranger", "-keyout", folder / "stranger.key", "-out", made.stranger)
    for name in ("server", "client"):
        _run(
            *_NEW, "-nodes", "-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{HOST}",
            "-addext", "basicConstraints=CA:FALSE", "-CA", made.authority, "-CAkey", folder / "ca.key",
            "-keyout", made.key(name), "-out", made.certificate(name),
        )  # fmt: skip
    encrypted = folder / "client-encrypted.key"
    _run("openssl", "pkcs8", "-topk8", "-in", made.key("client"), "-passout", f"pass:{KEY_PASSWORD}", "-out", encrypted)
    (folder / "server-chain.pem").write_text(made.key().read_text() + made.certificate().read_text())
    return made


def _run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True, capture_output=True, timeout=30)


class SecuredKafka(KafkaServer):
    """A broker with a listener of each kind: `TLS`, `MUTUAL` (TLS with a certificate of the client too), `LOGIN` (a login
    by TLS) and `OPENLOGIN` (a login without)."""

    def __init__(self, folder: Path, certificates: Certificates) -> None:
        taken: set[int] = set()
        node = KafkaNode(1, free_port(taken), free_port(taken))
        super().__init__(
            cached_parts(), folder, node, nodes=[node], cluster_id=new_cluster_id(), heap_mb=256, name="secured"
        )
        self.certificates = certificates
        self.ports = {name: free_port(taken) for name in ("TLS", "MUTUAL", "LOGIN", "OPENLOGIN")}

    async def prepare(self) -> None:
        await super().prepare()
        lines = dict(line.split("=", 1) for line in self._properties.read_text().splitlines())
        for name in ("listeners", "advertised.listeners"):
            lines[name] += "".join(f",{listener}://{HOST}:{port}" for listener, port in self.ports.items())
        kinds = ",TLS:SSL,MUTUAL:SSL,LOGIN:SASL_SSL,OPENLOGIN:SASL_PLAINTEXT"
        lines["listener.security.protocol.map"] += kinds
        lines |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificates.folder / "server-chain.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificates.authority),
            "listener.name.mutual.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        }
        for listener in ("login", "openlogin"):
            of = f"listener.name.{listener}"
            lines[f"{of}.plain.sasl.jaas.config"] = (
                f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
            )
            for mechanism in ("scram-sha-256", "scram-sha-512"):
                module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
                lines[f"{of}.{mechanism}.sasl.jaas.config"] = module
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    def add_user(self) -> None:
        """Let the user log in by SCRAM; that of PLAIN is in the configuration."""
        admin = AdminClient(confluent_options(self.settings, "test"))
        changes: Any = [
            UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        ]
        for change in changes:
            admin.alter_user_scram_credentials([change])[USER].result(20)

    def by(self, listener: str, mechanism: str = "PLAIN") -> KafkaSettings:
        """How a user writes down this listener."""
        folder = self.certificates.folder
        made: dict[str, Any] = {"brokers": f"{HOST}:{self.ports[listener]}", "replication": 1}
        if listener != "OPENLOGIN":
            made["ssl_cafile"] = str(self.certificates.authority)
        if listener == "MUTUAL":
            made["ssl_certfile"] = str(self.certificates.certificate("client"))
            made["ssl_keyfile"] = str(folder / "client-encrypted.key")
            made["ssl_keypassword"] = Secret(KEY_PASSWORD)
        if listener.endswith("LOGIN"):
            made |= {"sasl_mechanism": mechanism, "sasl_username": USER, "sasl_password": Secret(PASSWORD)}
        kinds: Any = {"TLS": "SSL", "MUTUAL": "SSL", "LOGIN": "SASL_SSL", "OPENLOGIN": "SASL_PLAINTEXT"}
        return KafkaSettings(security_protocol=kinds[listener], **made)


class SecuredMinio(MinioServer):
    """A MinIO that speaks https only."""

    def __init__(self, folder: Path, certificates: Certificates) -> None:
        super().__init__(
            cached_parts(),
            folder,
            free_port(),
            access_key="penstock",
            secret_key="penstock-secret",
            name="secured-minio",
        )
        self.certificates = certificates

    @property
    def settings(self) -> StoreSettings:
        """With the authority."""
        return replace(
            super().settings, endpoint=f"https://{self.address}", ssl_cafile=str(self.certificates.authority)
        )

    async def prepare(self) -> None:
        folder = self.folder / "certs"
        folder.mkdir(exist_ok=True)
        (folder / "public.crt").write_text(self.certificates.certificate().read_text())
        (folder / "private.key").write_text(self.certificates.key().read_text())

    def command(self) -> list[str]:
        return [*super().command(), "--certs-dir", str(self.folder / "certs")]

#!/usr/bin/env bash
# Images under the names of official ones, for machines that can pull none: Debian packages, and Kafka and MinIO as
# `make platform` fetched them. A test aid: where images can be pulled nobody needs it. Images that exist are kept.
set -euo pipefail
cd "$(dirname "$0")"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/penstock
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

has() { docker image inspect "$1" >/dev/null 2>&1; }

if ! has penstock-standin/debian:bookworm; then
    packages=ca-certificates,python3,python3-venv,redis-server,openjdk-17-jre-headless,nginx-light,prometheus
    # Nothing may start while packages are unpacked; prometheus wants an init system only for its unit file.
    mmdebstrap --quiet --variant=apt --include="$packages" --aptopt='APT::Install-Recommends "false"' \
        --customize-hook='rm -rf "$1"/var/lib/apt/lists/*' --format=tar bookworm "$scratch/base.tar" /etc/apt/sources.list.d/debian.sources
    docker import "$scratch/base.tar" penstock-standin/debian:bookworm >/dev/null
fi

# build NAME FOLDER-WITH-FILES < Dockerfile
build() {
    has "$1" || { cat >"$2/Dockerfile" && docker build --quiet --tag "$1" "$2" >/dev/null; }
}

folder() { mkdir -p "$scratch/$1" && echo "$scratch/$1"; }

python=$(folder python)
java=$(dirname "$(dirname "$(readlink -f "$(command -v java)")")")
cp --dereference /etc/ssl/certs/ca-certificates.crt "$java/lib/security/cacerts" "$python"
build python:3.11-slim-bookworm "$python" <<'END'
FROM penstock-standin/debian:bookworm
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY cacerts /etc/ssl/certs/java/cacerts
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin
CMD ["python3"]
END

build redis:7 "$(folder redis)" <<'END'
FROM penstock-standin/debian:bookworm
RUN install -d -o redis -g redis /data
USER redis
WORKDIR /data
CMD ["redis-server", "--protected-mode", "no"]
END

build nginx:1 "$(folder nginx)" <<'END'
FROM penstock-standin/debian:bookworm
CMD ["nginx", "-g", "daemon off;"]
END

build prom/prometheus:v2.55.1 "$(folder prometheus)" <<'END'
FROM penstock-standin/debian:bookworm
RUN install -d -o nobody -g nogroup /prometheus
USER nobody
ENTRYPOINT ["prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
END

minio=$(folder minio)
cp "$cache"/minio-*/minio "$minio/minio"
build minio/minio:RELEASE.2025-09-07T16-13-09Z "$minio" <<'END'
FROM penstock-standin/debian:bookworm
COPY minio /usr/bin/minio
ENTRYPOINT ["minio"]
END

kafka=$(folder kafka)
cp -r "$cache"/kafka-4.3.1/. "$kafka/kafka"
cp kafka-run.sh "$kafka/"
build apache/kafka:4.3.1 "$kafka" <<'END'
FROM penstock-standin/debian:bookworm
RUN useradd --uid 1000 --create-home appuser && install -d -o appuser /opt/kafka /var/lib/kafka/data
COPY kafka /opt/kafka/
COPY kafka-run.sh /etc/kafka/docker/run
USER appuser
CMD ["/etc/kafka/docker/run"]
END

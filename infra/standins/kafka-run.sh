#!/bin/sh
# As the official image does: KAFKA_SOME_NAME becomes some.name in server.properties, storage is formatted once.
set -eu
properties=/tmp/server.properties
env | grep '^KAFKA_' | grep -vE '^KAFKA_(HEAP_OPTS|OPTS)=' | while IFS='=' read -r name value; do
    echo "$(echo "${name#KAFKA_}" | tr 'A-Z_' 'a-z.')=$value"
done >"$properties"
libs=/opt/kafka
java="java ${KAFKA_HEAP_OPTS:--Xmx512m} -XX:+UseSerialGC -cp $libs/*"
set -f
$java kafka.tools.StorageTool format --ignore-formatted --cluster-id "${CLUSTER_ID:-5L6g3nShT-eMCtK--X86sw}" --config "$properties"
exec $java kafka.Kafka "$properties"

#!/bin/sh
# Gives out the slots to the nodes of a new cluster, once; of one that has them it changes nothing.
# REPLICAS: how many replicas each primary gets.
set -eu
port=${PORT:-6379}
export REDISCLI_AUTH="$REDIS_PASSWORD"

addresses=""
for node in $NODES; do
    until [ "$(timeout 3 valkey-cli -h "$node" -p "$port" PING 2>/dev/null)" = PONG ]; do sleep 1; done
    address=$(getent hosts "$node" | cut -d " " -f 1 | head -n 1)
    addresses="$addresses ${address:-$node}:$port"
done
if valkey-cli -h "${NODES%% *}" -p "$port" CLUSTER INFO | grep -q "cluster_slots_assigned:16384"; then
    echo "the slots are given out already"
    exit 0
fi
# shellcheck disable=SC2086  # as many words as there are nodes
exec valkey-cli --cluster create $addresses --cluster-replicas "$REPLICAS" --cluster-yes

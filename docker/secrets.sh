#!/bin/sh
# Makes the secrets of docker-compose.yml in docker/secrets; what is there already stays as it is.
set -eu
umask 077
folder="${1:-$(dirname "$0")/secrets}"
mkdir -p "$folder"
cd "$folder"

random() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
# Containers read them as users of their own; the folder keeps everybody else of this machine out.
keep() { [ -e "$1" ] || { printf '%s' "$2" >"$1"; chmod 644 "$1"; }; }

chmod 700 .
keep postgres_password "$(random)"
keep valkey_password "$(random)"
keep grafana_password "$(random)"
keep database_url "postgresql://astromesh:$(cat postgres_password)@postgres:5432/astromesh"
keep redis_url "redis://:$(cat valkey_password)@valkey:6379/0"
# These two are yours to fill in: a provider's key, and a key of `astromesh keys create … --scope metrics:read`.
keep openai_api_key ""
keep metrics_key ""

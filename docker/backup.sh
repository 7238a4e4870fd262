#!/bin/sh
# Writes the database of docker-compose.yml into a file: docker/backup.sh astromesh.dump
set -eu
file="${1:?docker/backup.sh FILE}"
umask 077
# shellcheck disable=SC2086 (a command and its arguments)
${IN_POSTGRES-docker compose exec -T postgres} pg_dump -U "${POSTGRES_USER:-astromesh}" -Fc \
  "${POSTGRES_DB:-astromesh}" >"$file.part"
mv "$file.part" "$file"

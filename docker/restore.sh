#!/bin/sh
# Puts the database of docker-compose.yml back to what docker/backup.sh wrote, all of it or nothing. Stop servers and
# workers before: docker compose stop server worker; docker/restore.sh astromesh.dump; docker compose up -d
set -eu
file="${1:?docker/restore.sh FILE}"
# shellcheck disable=SC2086 (a command and its arguments)
${IN_POSTGRES-docker compose exec -T postgres} pg_restore -U "${POSTGRES_USER:-astromesh}" -d "${POSTGRES_DB:-astromesh}" \
  --clean --if-exists --single-transaction --exit-on-error <"$file"

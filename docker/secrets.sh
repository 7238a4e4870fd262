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
keep callbacks_secret "whsec_$(random)"
# These are yours to fill in; an empty one is as if it were not there. `metrics_key` is a key of
# `astromesh keys create … --scope metrics:read`.
for name in jwt_secret openai_api_key anthropic_api_key gemini_api_key azure_openai_api_key \
  mistral_api_key groq_api_key deepseek_api_key openrouter_api_key \
  whatsapp_verify_token whatsapp_access_token whatsapp_phone_number_id whatsapp_app_secret whatsapp_identity_key \
  telegram_bot_token telegram_secret_token telegram_identity_key \
  slack_bot_token slack_signing_secret slack_identity_key metrics_key; do
  keep "$name" ""
done

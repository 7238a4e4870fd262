# What valkey-server is started with; the password comes on stdin, where nobody who lists processes sees it.
set -eu
{
  printf 'dir %s\n' "${VALKEY_DIR:-/data}"
  printf 'port %s\n' "${VALKEY_PORT:-6379}"
  printf 'appendonly yes\nappendfsync everysec\n'
  printf 'requirepass %s\n' "$(cat "${VALKEY_PASSWORD_FILE:-/run/secrets/valkey_password}")"
} | exec "${VALKEY_SERVER:-valkey-server}" -

#!/bin/sh
# Writes the digest of each image behind its tag in docker-compose.yml and the Dockerfile. It asks their registries.
set -eu
cd "$(dirname "$0")/.."
sed -n 's/^ *image: \([^ ]*:[^ @]*\)$/\1/p; s/^FROM \([^ ]*:[^ @]*\).*/\1/p' docker-compose.yml Dockerfile | sort -u |
  while read -r image; do
    digest="$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$image")"
    sed -i "s,\(image: \|^FROM \)$image\($\| \),\1$image@$digest\2," docker-compose.yml Dockerfile
    echo "$image@$digest"
  done

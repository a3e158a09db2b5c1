#!/usr/bin/env bash
# The template in examples/embedding, as a user would build it: with each driver's feature alone, and with both. Linted, tested,
# and run: the server is asked over TCP, and stopped with Ctrl-C and with SIGTERM.
set -euo pipefail
cd "$(dirname "$0")/../examples/embedding"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-../../target}/embedding
said=$(mktemp)
server=
trap 'rm -f "$said"; [ -z "$server" ] || kill "$server" 2>/dev/null || true' EXIT

cargo fmt --check
for features in reactor proactor reactor,proactor; do
  echo "-- with $features"
  cargo clippy --quiet --all-targets --no-default-features --features $features -- -D warnings
  cargo test --quiet --no-default-features --features $features
  cargo build --quiet --no-default-features --features $features
  for signal in INT TERM; do
    "$CARGO_TARGET_DIR/debug/embedding" --listen 127.0.0.1:0 >"$said" &
    server=$!
    for _ in $(seq 500); do grep -q "listening on" "$said" && break; sleep 0.02; done
    port=$(sed -n 's/^listening on .*://p' "$said")
    exec 3<>"/dev/tcp/127.0.0.1/$port"
    printf 'put colour dark red\n' >&3
    read -r answer <&3
    # The open connection is still answered.
    kill -"$signal" "$server"
    printf 'get colour\nquit\n' >&3
    answer+=" $(cat <&3)"
    exec 3>&-
    [ "$answer" = "ok = dark red" ] || { echo "a strange answer: $answer"; exit 1; }
    wait "$server"
    server=
    grep -q bye "$said"
  done
done
if cargo check --quiet --no-default-features 2>/dev/null; then echo "the template builds without a driver"; exit 1; fi

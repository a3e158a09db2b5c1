#!/usr/bin/env bash
# Builds the template in examples/embedding as a user would, with each driver feature alone and with both. Lints it, tests it and
# runs it: a client sends requests over TCP, and the server is stopped with SIGINT and with SIGTERM.
set -euo pipefail
cd "$(dirname "$0")/../examples/embedding"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-../../target}/embedding
log=$(mktemp)
server=
trap 'rm -f "$log"; [ -z "$server" ] || kill "$server" 2>/dev/null || true' EXIT

cargo fmt --check
for features in reactor proactor reactor,proactor; do
  echo "-- with $features"
  cargo clippy --quiet --all-targets --no-default-features --features $features -- -D warnings
  cargo test --quiet --no-default-features --features $features
  cargo build --quiet --no-default-features --features $features
  for signal in INT TERM; do
    "$CARGO_TARGET_DIR/debug/embedding" --listen 127.0.0.1:0 >"$log" &
    server=$!
    for _ in $(seq 500); do grep -q "listening on" "$log" && break; sleep 0.02; done
    port=$(sed -n 's/^listening on .*://p' "$log")
    exec 3<>"/dev/tcp/127.0.0.1/$port"
    printf 'put colour dark red\n' >&3
    read -r answer <&3
    # A connection that is open at the signal is still served.
    kill -"$signal" "$server"
    printf 'get colour\nquit\n' >&3
    answer+=" $(cat <&3)"
    exec 3>&-
    [ "$answer" = "ok = dark red" ] || { echo "unexpected answer: $answer"; exit 1; }
    wait "$server"
    server=
    grep -q bye "$log"
  done
done
if cargo check --quiet --no-default-features 2>/dev/null; then echo "the template builds without a driver"; exit 1; fi

#!/usr/bin/env bash
# Type-checks platforms that are not run in CI: the library with its tests and examples, and the library with the reactor alone.
#
#   .ci/check-targets.sh                           all of them
#   .ci/check-targets.sh x86_64-apple-darwin       only this one
set -euo pipefail
cd "$(dirname "$0")/.."
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(x86_64-apple-darwin x86_64-unknown-freebsd)
export RUSTFLAGS="-D warnings" CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/targets
for target in "${targets[@]}"; do
  # Exit code 3: the machine lacks a tool; the code is not at fault.
  rustup target add "$target" >/dev/null 2>&1 ||
    { echo "the standard library for $target could not be installed: run \`rustup target add $target\`"; exit 3; }
  echo "-- $target"
  cargo check --quiet --target "$target" --lib --tests --examples
  echo "-- $target, the reactor alone"
  cargo check --quiet --target "$target" --lib --no-default-features --features reactor
done

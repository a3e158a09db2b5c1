#!/usr/bin/env bash
# The Windows side, on a Linux machine: built with mingw, run under Wine.
#
#   ci/windows.sh build                      lints the library, the tests and the examples for Windows, and links the echo
#   ci/windows.sh run [MODULE...]            the same, then the tests and the echo under Wine, on both drivers
#
# It installs what it needs. It ends with 3 if that cannot be had, which is not the code's fault.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-run}
shift || true
case $what in
  build | run) ;;
  *) echo "usage: ci/windows.sh [build | run [MODULE...]]"; exit 2 ;;
esac

target=x86_64-pc-windows-gnu
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/windows RUSTFLAGS="-D warnings" CARGO_INCREMENTAL=0
export CARGO_PROFILE_DEV_DEBUG=line-tables-only WINEDEBUG=-all

missing() { echo "!! $1 could not be had: $2"; exit 3; }
rustup target add $target >/dev/null 2>&1 || missing "the standard library for $target" "run \`rustup target add $target\`"
command -v x86_64-w64-mingw32-gcc >/dev/null || {
  apt-get update -q && apt-get install -y -q --no-install-recommends gcc-mingw-w64-x86-64
} >/dev/null 2>&1 || missing "mingw" "run \`apt-get install gcc-mingw-w64-x86-64\`"

features=("")
[ "$what" = build ] || features+=("--no-default-features --features proactor" "--no-default-features --features reactor")
for some in "${features[@]}"; do
  echo "-- lints, ${some:-with the default features}"
  # shellcheck disable=SC2086 # the features are several words
  cargo clippy --quiet --target $target --lib --tests --examples $some -- -D warnings
done
echo "-- the examples link"
cargo build --quiet --target $target --example echo --example lateness
[ "$what" = run ] || exit 0

command -v wine >/dev/null || {
  apt-get update -q && apt-get install -y -q --no-install-recommends wine wine64
} >/dev/null 2>&1 || missing "Wine" "run \`apt-get install wine wine64\`"

# A Wine of our own, in the target folder, so that nobody's settings matter.
WINEPREFIX=$(realpath "$CARGO_TARGET_DIR")/wine
export WINEPREFIX
[ -d "$WINEPREFIX" ] || { echo "-- Wine makes its folder"; wineboot --init >/dev/null 2>&1 || true; }

# Wine 8 lacks the library that Rust's standard library has its random numbers from.
built=$CARGO_TARGET_DIR/$target/debug
if [ ! -f "$built/bcryptprimitives.dll" ]; then
  source=$(mktemp --suffix=.c)
  cat >"$source" <<'C'
#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID buffer, ULONG length);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T length) { return SystemFunction036(data, (ULONG)length); }
C
  x86_64-w64-mingw32-gcc -shared -o "$built/bcryptprimitives.dll" "$source" -ladvapi32
  rm "$source"
fi
mkdir -p "$built/deps"
for folder in deps examples; do cp "$built/bcryptprimitives.dll" "$built/$folder/"; done

echo "-- the suite is linked"
cargo test --quiet --no-run --target $target --test suite --test connections
newest() { find "$built/deps" -name "$1-*.exe" -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d ' ' -f 2-; }
suite=$(newest suite)
wine "$suite" --list >/dev/null 2>&1 || { echo "the suite does not start under Wine"; exit 1; }

# One module at a time: what hangs is then known by name.
modules=("$@")
[ ${#modules[@]} -gt 0 ] ||
  mapfile -t modules < <(wine "$suite" --list 2>/dev/null | tr -d '\r' | sed -n 's/::.*: test$//p' | sort -u)
failed=0 number=0 log=$(mktemp)
trap 'rm -f "$log"' EXIT
for driver in proactor reactor; do
  passed=0
  for module in "${modules[@]}"; do
    number=$((number + 1))
    printf '\r-- %s: %-20s %3d of %d' "$driver" "$module" "$number" $((2 * ${#modules[@]}))
    if WINDLASS_TEST_DRIVERS=$driver WINDLASS_TEST_ROUNDS=${WINDLASS_TEST_ROUNDS:-200} \
      timeout 600 wine "$suite" "$module::" --test-threads 2 >"$log" 2>&1; then
      passed=$((passed + $(sed -n 's/^test result: ok\. \([0-9]*\) passed.*/\1/p' "$log" | tail -n 1)))
    else
      failed=$((failed + 1))
      printf '\n'
      tr -d '\r' <"$log" | grep -vE '^test .* ok$' | tail -n 60
    fi
  done
  printf '\r-- %s: %d tests passed%40s\n' "$driver" "$passed" ""
done

echo "-- a thousand connections"
timeout 900 wine "$(newest connections)" --nocapture >"$log" 2>&1 || { tail -n 30 "$log"; failed=$((failed + 1)); }
grep -aE '^-- ' "$log" | tr -d '\r' || true

echo "-- ten thousand receives, each dropped"
for driver in proactor reactor; do
  WINDLASS_TEST_DRIVERS=$driver WINDLASS_TEST_ROUNDS=10000 timeout 900 wine "$suite" --exact cancel::no_byte_is_lost_with_a_dropped_read \
    cancel::no_byte_of_another_thread_is_lost_with_a_dropped_read >"$log" 2>&1 || { tail -n 30 "$log"; failed=$((failed + 1)); }
done

# Wine rounds to a millisecond; Windows does better.
for driver in proactor reactor; do
  wine "$built/examples/lateness.exe" --driver $driver --rounds 50 2>/dev/null | tr -d '\r' || failed=$((failed + 1))
done

# The example, with a client that is not ours and runs on the machine itself.
for driver in proactor reactor; do
  echo "-- the echo example on the $driver, with a native client"
  wine "$built/examples/echo.exe" --driver $driver --addr 127.0.0.1:7717 >"$log" 2>&1 &
  server=$!
  heard=""
  for _ in $(seq 50); do
    heard=$( (exec 3<>/dev/tcp/127.0.0.1/7717 && printf 'over the fence\n' >&3 && head -n 1 <&3) 2>/dev/null) && break
    sleep 0.2
  done
  kill $server 2>/dev/null || true
  wineserver --kill 2>/dev/null || true
  wait $server 2>/dev/null || true
  [ "$heard" = "over the fence" ] || { echo "the echo said '$heard'"; cat "$log"; failed=$((failed + 1)); }
done
[ $failed -eq 0 ] && echo "-- passes under Wine"
[ $failed -eq 0 ]

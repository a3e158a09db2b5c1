#!/usr/bin/env bash
# Checks the Windows build on a Linux machine: built with mingw, run under Wine.
#
#   .ci/windows.sh build          lints the library, the tests and the examples for Windows, and links the examples
#   .ci/windows.sh run            the same, then runs the tests and the examples under Wine, on both drivers
#   .ci/windows.sh run PART...    only these parts, without the lints. A part is a module of the suite, `connections`
#                                (a thousand connections), `drops` (ten thousand receives, each dropped), `lateness`
#                                or `echo`
#
# Each step prints how long it took. The script installs missing tools. Exit code 3: a tool could not be installed, which is
# no fault of the code. Exit code 4: the wineserver died, so a failure of the program that it served means nothing.
#
# What Wine 8 cannot do: start a program while the wineserver of the previous program shuts down. The wineserver exits after its
# last program, on Debian without delay (`-p0`). A program that connects just before the listening socket is closed then ends
# with `wine client error:0: recvmsg: Connection reset by peer`, before its `main` runs. Therefore one wineserver that does not
# exit by itself (`-p`) serves the whole script.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-run}
shift || true
case $what in
  build | run) ;;
  *) echo "usage: .ci/windows.sh [build | run [PART...]]"; exit 2 ;;
esac

target=x86_64-pc-windows-gnu
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/windows RUSTFLAGS="-D warnings" CARGO_INCREMENTAL=0
export CARGO_PROFILE_DEV_DEBUG=line-tables-only WINEDEBUG=-all

missing() { echo "!! $1 could not be installed: $2"; exit 3; }
rustup target add $target >/dev/null 2>&1 || missing "the standard library for $target" "run \`rustup target add $target\`"
command -v x86_64-w64-mingw32-gcc >/dev/null || {
  apt-get update -q && apt-get install -y -q --no-install-recommends gcc-mingw-w64-x86-64
} >/dev/null 2>&1 || missing "mingw" "run \`apt-get install gcc-mingw-w64-x86-64\`"

# Prints how long the previous step took.
began=$SECONDS
took() {
  echo "   $((SECONDS - began)) s"
  began=$SECONDS
}

parts=("$@")
features=("")
[ ${#parts[@]} -eq 0 ] || features=()
[ "$what" = build ] || [ ${#parts[@]} -gt 0 ] ||
  features+=("--no-default-features --features proactor" "--no-default-features --features reactor")
for some in "${features[@]}"; do
  echo "-- lints, ${some:-with the default features}"
  # shellcheck disable=SC2086 # the features are several words
  cargo clippy --quiet --target $target --lib --tests --examples $some -- -D warnings
  took
done
echo "-- the examples link"
cargo build --quiet --target $target --example echo --example lateness
took
[ "$what" = run ] || exit 0

command -v wine >/dev/null || {
  apt-get update -q && apt-get install -y -q --no-install-recommends wine wine64
} >/dev/null 2>&1 || missing "Wine" "run \`apt-get install wine wine64\`"

# A Wine prefix inside the target folder, so that the user's settings do not matter.
WINEPREFIX=$(realpath "$CARGO_TARGET_DIR")/wine
export WINEPREFIX
log=$(mktemp) server_log=$(mktemp)
wineserver --kill 2>/dev/null || true # of an earlier run of this script that was killed
mkdir -p "$WINEPREFIX"
wineserver --foreground --persistent >"$server_log" 2>&1 &
wineserver=$!
cleanup() {
  wineserver --kill 2>/dev/null || true
  rm -f "$log" "$server_log"
}
trap cleanup EXIT

# Ends the script if the wineserver has died: the programs that it served then fail through no fault of their own.
require_wineserver() {
  kill -0 $wineserver 2>/dev/null && return
  local code=0
  wait $wineserver || code=$?
  echo "!! the wineserver died with exit code $code:"
  cat "$server_log"
  exit 4
}

# Signal 0 succeeds once the wineserver holds its lock. Before that, a program would start a wineserver of its own.
for _ in $(seq 100); do
  wineserver --kill=0 2>/dev/null && break
  sleep 0.1
done
if [ ! -f "$WINEPREFIX/system.reg" ]; then
  echo "-- Wine creates its folder"
  wineboot --init >/dev/null 2>&1 || true
  took
fi
require_wineserver

# Wine 8 lacks the library from which Rust's standard library gets random numbers.
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

echo "-- the tests link"
cargo test --quiet --no-run --target $target --test suite --test connections
took
newest() { find "$built/deps" -name "$1-*.exe" -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d ' ' -f 2-; }
suite=$(newest suite)
wine "$suite" --list >"$log" 2>&1 || { require_wineserver; echo "the suite does not start under Wine"; cat "$log"; exit 1; }
mapfile -t all < <(tr -d '\r' <"$log" | sed -n 's/::.*: test$//p' | sort -u)

extras=(connections drops lateness echo)
modules=()
for part in ${parts[@]+"${parts[@]}"}; do
  case " ${extras[*]} " in *" $part "*) continue ;; esac
  case " ${all[*]} " in
    *" $part "*) modules+=("$part") ;;
    *) echo "there is no part \`$part\`: ${extras[*]} ${all[*]}"; exit 2 ;;
  esac
done
[ ${#parts[@]} -gt 0 ] || modules=("${all[@]}")
wanted() { [ ${#parts[@]} -eq 0 ] || [[ " ${parts[*]} " == *" $1 "* ]]; }

failed=0
# Counts a failure and prints what the program printed, without the tests that passed.
fail() {
  require_wineserver
  failed=$((failed + 1))
  echo "!! failed: $1"
  tr -d '\r' <"$log" | { grep -avE '^test .* ok$' || true; } | tail -n 60
}

# One module at a time, so that a hang can be attributed to a module.
for driver in proactor reactor; do
  [ ${#modules[@]} -gt 0 ] || break
  passed=0 number=0
  for module in "${modules[@]}"; do
    number=$((number + 1))
    # Wine sometimes ends with code 1 before the program has started. A started one prints the number of its tests at once.
    for _ in 1 2 3; do
      code=0
      WINDLASS_TEST_DRIVERS=$driver WINDLASS_TEST_ROUNDS=${WINDLASS_TEST_ROUNDS:-200} \
        timeout 600 wine "$suite" "$module::" --test-threads 2 >"$log" 2>&1 || code=$?
      if [ $code -ne 1 ] || [ -s "$log" ]; then break; fi
      echo "-- Wine did not start $module: once more"
    done
    count=$(tr -d '\r' <"$log" | sed -n 's/^test result: ok\. \([0-9]*\) passed.*/\1/p' | tail -n 1)
    printf -- '-- %s %d of %d: %s, %d passed' "$driver" $number ${#modules[@]} "$module" "${count:-0}"
    took
    passed=$((passed + ${count:-0}))
    [ $code -eq 0 ] || fail "$module on the $driver, exit code $code"
  done
  echo "-- $driver: $passed tests passed"
done

if wanted connections; then
  echo "-- a thousand connections"
  timeout 900 wine "$(newest connections)" --nocapture >"$log" 2>&1 || fail "connections"
  grep -aE '^-- ' "$log" | tr -d '\r' || true
  took
fi

if wanted drops; then
  for driver in proactor reactor; do
    echo "-- ten thousand receives on the $driver, each dropped"
    WINDLASS_TEST_DRIVERS=$driver WINDLASS_TEST_ROUNDS=10000 timeout 900 wine "$suite" --exact \
      cancel::a_dropped_read_loses_no_byte \
      cancel::a_dropped_read_loses_no_byte_of_another_thread >"$log" 2>&1 || fail "drops on the $driver"
    # A filter that matches nothing would pass.
    grep -aqE '^test result: ok\. 2 passed' "$log" || fail "drops on the $driver: not both tests passed"
    took
  done
fi

# Wine rounds to a millisecond; Windows does better.
if wanted lateness; then
  for driver in proactor reactor; do
    timeout 300 wine "$built/examples/lateness.exe" --driver $driver --rounds 50 >"$log" 2>&1 || fail "lateness on the $driver"
    tr -d '\r' <"$log"
    took
  done
fi

# The example, with a native client.
if wanted echo; then
  for driver in proactor reactor; do
    echo "-- the echo example on the $driver, with a native client"
    wine "$built/examples/echo.exe" --driver $driver --addr 127.0.0.1:7717 >"$log" 2>&1 &
    server=$!
    reply=""
    for _ in $(seq 50); do
      reply=$( (exec 3<>/dev/tcp/127.0.0.1/7717 && printf 'over the fence\n' >&3 && head -n 1 <&3) 2>/dev/null) && break
      sleep 0.2
    done
    # SIGKILL is enough: `server` is the process of the Windows program itself.
    kill -KILL $server 2>/dev/null || true
    wait $server 2>/dev/null || true
    [ "$reply" = "over the fence" ] || fail "the echo on the $driver answered '$reply'"
    took
  done
fi

require_wineserver
echo "-- $SECONDS s in total"
[ $failed -eq 0 ] || { echo "!! $failed steps failed"; exit 1; }
echo "-- passes under Wine"

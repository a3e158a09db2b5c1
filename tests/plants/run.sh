#!/usr/bin/env bash
# Plants each bug of this folder into a scratch copy of the tree, runs the test that must catch it, and demands red.
#
#   tests/plants/run.sh             all plants
#   tests/plants/run.sh fd_reuse    those whose name contains a word
#
# A plant is a patch with a head of three lines:
#   Plant: what is broken
#   Row: the class of failure it stands for
#   Test: the arguments of `cargo test`, perhaps after NAME=value settings
# Those for Windows are skipped, and say so, unless CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER tells what runs such a program.
set -u
cd "$(dirname "$0")/../.." || exit 2
word=${1:-}
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard | grep -zv '^tests/plants/' | xargs -0 cp --parents -t "$copy"
(cd "$copy" && git init -q && git add -A && git -c user.name=plants -c user.email=plants@localhost commit -qm base)
export CARGO_TARGET_DIR=${PLANTS_TARGET_DIR:-$PWD/target/plants}
# Nobody looks into these builds, and without line tables they take half the time.
export CARGO_PROFILE_DEV_DEBUG=0
# Leaves of the suite only the module that the test is in, and those that it uses: to build the whole of it takes a minute.
trim() {
  local suite=$copy/tests/suite found=" " left=" $1 support child " name file
  while [ -n "${left// /}" ]; do
    name=${left# } name=${name%% *} left=${left/ $name / }
    [[ $found == *" $name "* ]] && continue
    found+="$name "
    for file in "$suite/$name.rs" "$suite/$name"/*.rs; do
      [ -f "$file" ] || continue
      for name in $(grep -o 'crate::[a-z_]*' "$file" | sed 's/crate:://' | sort -u); do
        [[ $found == *" $name "* ]] || left+="$name "
      done
    done
  done
  awk -v found="$found" '
    /^#\[/ { held = held $0 "\n"; next }
    /^mod / { name = $2; sub(/;/, "", name); if (index(found, " " name " ")) printf "%s%s\n", held, $0; held = ""; next }
    { printf "%s%s\n", held, $0; held = "" }' "$suite/main.rs" >"$suite/main.rs.new" && mv "$suite/main.rs.new" "$suite/main.rs"
}
red=0 green=0 broken=0
for plant in tests/plants/*"$word"*.patch; do
  name=$(basename "$plant" .patch)
  command=$(sed -n 's/^Test: //p' "$plant" | head -n 1)
  settings=() arguments=()
  for part in $command; do
    if [[ ${#arguments[@]} -eq 0 && $part =~ ^[A-Z_]+= ]]; then settings+=("$part"); else arguments+=("$part"); fi
  done
  if [[ $command == *x86_64-pc-windows-gnu* && -z ${CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER:-} ]]; then
    echo "SKIPPED $name: nothing here runs a program for Windows"; continue
  fi
  (cd "$copy" && git checkout -q . && git clean -qfd)
  if ! (cd "$copy" && git apply -) <"$plant"; then
    echo "BROKEN  $name: the patch does not apply"; broken=$((broken + 1)); continue
  fi
  [[ $command =~ --test\ suite\ ([a-z_]+):: ]] && trim "${BASH_REMATCH[1]}"
  log=$(mktemp)
  if ! (cd "$copy" && env ${settings[@]+"${settings[@]}"} cargo test -q --no-run "${arguments[@]}") >"$log" 2>&1; then
    echo "BROKEN  $name: does not build"; tail -n 20 "$log"; broken=$((broken + 1)); continue
  fi
  (cd "$copy" && env ${settings[@]+"${settings[@]}"} timeout 150 cargo test -q "${arguments[@]}") >"$log" 2>&1
  status=$?
  if [ $status -eq 0 ]; then
    echo "MISSED  $name: the test passes with the bug in"; green=$((green + 1))
  else
    echo "caught  $name"; red=$((red + 1))
  fi
  rm -f "$log"
done
echo "$red caught, $green missed, $broken broken"
[ $((green + broken)) -eq 0 ] && [ $red -gt 0 ]

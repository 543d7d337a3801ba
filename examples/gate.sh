#!/usr/bin/env bash
# Quantizes and evaluates the embedded model in a temporary directory, then gates it twice: with a limit that it keeps,
# and with one that it does not. The exit code of a gate is what a CI system looks at: 0 pass, 1 not, 2 bad input.
#
#     bash examples/gate.sh
#
# It printed:
#
#     pass: heb_Hebr lost 0.151 bits per byte (95 % CI 0.127 to 0.173), limit 0.5 (measured by divergence)
#     limit 0.5: exit code 0
#     fail: heb_Hebr lost 0.151 bits per byte (95 % CI 0.127 to 0.173), limit 0.001 (measured by divergence)
#     limit 0.001: exit code 1
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"

fairbits --quiet quantize embedded:tiny --policy rtn --bits 3 --group channel --out w3 > /dev/null
fairbits --quiet evaluate w3 --reference embedded:tiny --languages eng,heb --tokens 512 --out scores.json > /dev/null

for limit in 0.5 0.001; do
  code=0
  fairbits --quiet gate scores.json --max-worst "$limit" --junit gate.xml || code=$?
  echo "limit $limit: exit code $code"
done

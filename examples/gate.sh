#!/usr/bin/env bash
# Quantizes the embedded model to 8 and to 3 bits in a temporary directory, evaluates both, and gates them with the same
# limit. The exit code of a gate is what a CI system looks at: 0 pass, 1 not, 2 bad input.
#
#     bash examples/gate.sh
#
# It printed:
#
#     pass: heb_Hebr: 3.18 of 100 next tokens change (95 % interval 0.526 to 6.51, corrected for the choice of the
#     worst of 2), limit 10
#     8 bits: exit code 0
#     fail: heb_Hebr: 48.4 of 100 next tokens change (95 % interval 41.5 to 52.2, corrected for the choice of the
#     worst of 2), limit 10. Also over the limit: eng_Latn
#     3 bits: exit code 1
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"

for bits in 8 3; do
  fairbits --quiet quantize embedded:tiny --policy rtn --bits "$bits" --group channel --out "w$bits" > /dev/null
  fairbits --quiet evaluate "w$bits" --reference embedded:tiny --languages eng,heb --tokens 512 --out "$bits.json" > /dev/null
  code=0
  fairbits --quiet gate "$bits.json" --max-changed 10 --junit gate.xml || code=$?
  echo "$bits bits: exit code $code"
done

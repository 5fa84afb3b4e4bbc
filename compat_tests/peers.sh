#!/usr/bin/env bash
# peers.sh [STEP...]: fetch and build the programs of other projects that compat_tests/ runs.
#
#   STEPS (default: all)
#     packages     Debian packages: compilers, libraries, kcat, jq, a JDK, Maven, promtool
#     jars         Kafka with Streams and Connect, ZooKeeper, BookKeeper, Spark's Kafka connector and a
#                  PostgreSQL server, from Maven (pom.xml)
#     librdkafka   librdkafka's own test-runner, built from the source that npm carries
#     kafka-python kafka-python's integration tests, from its source distribution
#     spark        a virtual environment with pyspark (requirements/spark.txt)
#
# Everything lands in ${QUIRE_CACHE:-${XDG_CACHE_HOME:-~/.cache}/quire}. A step that finds its
# result there, made from the same pins, does nothing. Versions and hashes are pinned here, in
# pom.xml, in peers/jars.sha256 and in requirements/spark.txt: to change one, change the pin.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
cache=${QUIRE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quire}
python=${PYTHON:-$root/.venv/bin/python}

npm_package=@confluentinc/kafka-javascript@1.10.1 # carries librdkafka 2.15.1 with its tests
npm_file=confluentinc-kafka-javascript-1.10.1.tgz
npm_sha512=29578f5019f6d44a8254ff667f1cc4b8cdd26091c7105ed7fa2882d9ee374108034b211a92c2279821a8a13df0e6af9c340764482acaef58f42027eaa12a992f
kafka_python_version=3.0.12
kafka_python_file=kafka_python-3.0.12.tar.gz
kafka_python_sha256=4ccda3616b9aa5c353d74a97f2770d6cd1b950890d77ab0e8890e09a48eeed65

say() { printf 'peers: %s\n' "$*" >&2; }
die() {
    say "error: $*"
    exit 1
}

# stamp_of TEXT... : one hash for all that a step's result depends on.
stamp_of() { printf '%s\n' "$@" | sha256sum | cut -d' ' -f1; }
is_done() { [ -f "$cache/$1.stamp" ] && [ "$(cat "$cache/$1.stamp")" = "$2" ]; }
set_done() { printf '%s\n' "$2" >"$cache/$1.stamp"; }

# quietly LOG-NAME COMMAND... : the output goes to a log, which is shown when the command fails.
quietly() {
    local log=$cache/log/$1.log
    shift
    mkdir -p "$cache/log"
    if ! "$@" >"$log" 2>&1; then
        tail -n 40 "$log" >&2
        die "failed: $* (whole log: $log)"
    fi
}

step_packages() {
    local wanted=() command
    # command:package, then header:package
    for pair in kcat:kcat jq:jq gcc:gcc g++:g++ make:make promtool:prometheus npm:npm \
        java:default-jdk-headless mvn:maven; do
        command -v "${pair%%:*}" >/dev/null || wanted+=("${pair##*:}")
    done
    for pair in openssl/ssl.h:libssl-dev zlib.h:zlib1g-dev zstd.h:libzstd-dev lz4.h:liblz4-dev \
        rapidjson/document.h:rapidjson-dev curl/curl.h:libcurl4-openssl-dev; do
        # Some packages have a folder for each kind of machine.
        compgen -G "/usr/include/${pair%%:*}" >/dev/null ||
            compgen -G "/usr/include/*/${pair%%:*}" >/dev/null || wanted+=("${pair##*:}")
    done
    if [ ${#wanted[@]} = 0 ]; then
        say "packages: all there"
        return
    fi
    [ "$(id -u)" = 0 ] || die "missing packages, and not root: apt-get install ${wanted[*]}"
    say "packages: installing ${wanted[*]}"
    export DEBIAN_FRONTEND=noninteractive
    [ -n "$(find /var/lib/apt/lists -name '*Packages*' -print -quit)" ] ||
        quietly apt-update apt-get update
    quietly apt-install apt-get install -y --no-install-recommends "${wanted[@]}"
}

step_jars() {
    local profile stamp
    stamp=$(stamp_of "$(cat "$here/pom.xml" "$here/peers/jars.sha256")")
    if is_done jars "$stamp"; then
        say "jars: all there"
        return
    fi
    mkdir -p "$cache/jars"
    for profile in kafka applications zookeeper bookkeeper spark postgres; do
        if check_jars "$profile" 2>/dev/null; then
            say "jars: $profile is there"
            continue
        fi
        say "jars: fetching $profile"
        rm -rf "$cache/jars/$profile"
        quietly "maven-$profile" mvn -q -B -f "$here/pom.xml" -P"$profile" \
            dependency:copy-dependencies -DoutputDirectory="$cache/jars/$profile"
        check_jars "$profile" || die "jars: $profile is not what peers/jars.sha256 lists"
    done
    set_done jars "$stamp"
}

# check_jars PROFILE: every listed jar is there with the right content, and no other.
check_jars() {
    local listed found
    listed=$(grep -c " $1/" "$here/peers/jars.sha256")
    found=$(find "$cache/jars/$1" -name '*.jar' 2>/dev/null | wc -l)
    if [ "$listed" != "$found" ]; then
        say "jars: $1 has $found jars, expected $listed"
        return 1
    fi
    (cd "$cache/jars" && grep " $1/" "$here/peers/jars.sha256" | sha256sum -c --quiet --strict -)
}

step_librdkafka() {
    local stamp work=$cache/librdkafka
    # With curl, for logins by tokens of a provider (OIDC).
    stamp=$(stamp_of "$npm_sha512" curl "$(cat "$here"/peers/librdkafka-*.patch 2>/dev/null || true)")
    if is_done librdkafka "$stamp" && [ -x "$work/tests/test-runner" ]; then
        say "librdkafka: test-runner is there"
        return
    fi
    say "librdkafka: building the test-runner (about three minutes)"
    mkdir -p "$cache/download"
    if ! echo "$npm_sha512  $cache/download/$npm_file" | sha512sum -c --status - 2>/dev/null; then
        (cd "$cache/download" && quietly npm npm pack --silent "$npm_package")
        echo "$npm_sha512  $cache/download/$npm_file" | sha512sum -c --status - ||
            die "librdkafka: $npm_file does not have the pinned sha512"
    fi
    rm -rf "$work" "$cache/librdkafka.unpacked"
    mkdir "$cache/librdkafka.unpacked"
    tar xzf "$cache/download/$npm_file" -C "$cache/librdkafka.unpacked"
    mv "$cache/librdkafka.unpacked/package/deps/librdkafka" "$work"
    rm -rf "$cache/librdkafka.unpacked"
    (
        cd "$work"
        # npm drops the executable bits of scripts
        chmod +x configure lds-gen.py tests/*.sh tests/*.py 2>/dev/null || true
        quietly librdkafka-configure ./configure --disable-gssapi
        quietly librdkafka-make make -j"$(nproc)" libs
        quietly librdkafka-tests make -C tests -j"$(nproc)" test-runner
    )
    # Without these the tests that need them skip themselves without a word, or fail.
    grep -q '^WITH_CURL=.*y' "$work/Makefile.config" || grep -q 'WITH_CURL 1' "$work/config.h" ||
        die "librdkafka: configure did not find curl"
    grep -q '^WITH_RAPIDJSON=.*y' "$work/Makefile.config" || grep -q 'RAPIDJSON' "$work/config.h" ||
        die "librdkafka: configure did not find rapidjson"
    set_done librdkafka "$stamp"
}

step_kafka_python() {
    local stamp work=$cache/kafka-python
    stamp=$(stamp_of "$kafka_python_sha256" "$(cat "$here/peers/kafka_python_service.py")")
    if is_done kafka-python "$stamp"; then
        say "kafka-python: tests are there"
        return
    fi
    say "kafka-python: fetching $kafka_python_version"
    mkdir -p "$cache/download"
    if ! echo "$kafka_python_sha256  $cache/download/$kafka_python_file" |
        sha256sum -c --status - 2>/dev/null; then
        quietly kafka-python "$python" -m pip download --quiet --no-deps --no-binary :all: \
            --dest "$cache/download" "kafka-python==$kafka_python_version"
        echo "$kafka_python_sha256  $cache/download/$kafka_python_file" |
            sha256sum -c --status - || die "kafka-python: wrong sha256 of $kafka_python_file"
    fi
    rm -rf "$work"
    mkdir "$work"
    tar xzf "$cache/download/$kafka_python_file" -C "$work" --strip-components=1
    # The installed package is what is tested, so the source must not shadow it; and the source
    # distribution lacks two files that its tests import.
    mv "$work/kafka" "$work/kafka.source"
    touch "$work/test/__init__.py"
    cp "$here/peers/kafka_python_service.py" "$work/test/service.py"
    set_done kafka-python "$stamp"
}

step_spark() {
    local stamp venv=$cache/venv-spark
    stamp=$(stamp_of "$(cat "$root/requirements/spark.txt")" "$("$python" --version)")
    if is_done spark "$stamp" && [ -x "$venv/bin/python" ]; then
        say "spark: pyspark is there"
        return
    fi
    say "spark: installing pyspark (half a gigabyte, about a minute)"
    rm -rf "$venv"
    "$python" -m venv "$venv"
    # The build tools first: pyspark is a source distribution, and is built with the pinned ones.
    awk '/^(setuptools|wheel|packaging)==/ {keep = 1} /^[a-z]/ && !/^(setuptools|wheel|packaging)==/ {keep = 0} keep' \
        "$root/requirements/spark.txt" >"$cache/build-tools.txt"
    quietly spark-tools "$venv/bin/python" -m pip install --quiet --require-hashes \
        -r "$cache/build-tools.txt"
    quietly spark "$venv/bin/python" -m pip install --quiet --require-hashes \
        --no-build-isolation -r "$root/requirements/spark.txt"
    set_done spark "$stamp"
}

main() {
    [ -x "$python" ] || die "no Python at $python (set PYTHON)"
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    flock 9 # two runs at once would build over each other
    [ $# -gt 0 ] || set -- packages jars librdkafka kafka-python spark
    local step started
    for step; do
        case $step in
        packages | jars | librdkafka | kafka-python | spark) ;;
        *) die "no step named $step" ;;
        esac
        started=$SECONDS
        "step_${step//-/_}"
        [ $((SECONDS - started)) -lt 2 ] || say "$step: $((SECONDS - started)) s"
    done
}

main "$@"

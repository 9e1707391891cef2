#!/bin/sh
# Compiles the JNI library. Maven runs it:
#
#   build.sh CLASSES JAVA_HOME SOURCES   writes CLASSES/META-INF/native/linux-ARCH/
#                                  libfastnorm_jni.so  the JNI library
#                                  libdir              libfastnorm's folder, from pkg-config
#                                  libfastnorm.so.1    libfastnorm itself, if FASTNORM_BUNDLE is 1
#
# SOURCES has wrap.c, which bindings/swig/generate.py --java writes.
# The compiler is $CC or cc, with $CFLAGS; ARCH is $FASTNORM_ARCH or this machine's. pkg-config
# finds libfastnorm (PKG_CONFIG_PATH).
set -eu

classes=$1
java_home=$2
sources=$3
soname=libfastnorm.so.1
out=$classes/META-INF/native/linux-${FASTNORM_ARCH:-$(uname -m)}

fail() {
  echo "build.sh: $*" >&2
  exit 1
}

[ -f "$java_home/include/jni.h" ] ||
  fail "$java_home/include/jni.h is missing: a JDK is required, not a JRE"
pkg-config --exists fastnorm ||
  fail "pkg-config finds no fastnorm.pc: install libfastnorm, and set PKG_CONFIG_PATH to" \
    "the folder of fastnorm.pc unless it is a system folder"
libdir=$(pkg-config --libs-only-L fastnorm | sed 's/^-L//; s/ .*//')
[ -n "$libdir" ] || libdir=$(pkg-config --variable=libdir fastnorm)

rm -rf "$out"
mkdir -p "$out"
# RPATH, not RUNPATH: a library beside this one comes before LD_LIBRARY_PATH. Symbols are bound when
# they are first used, so that an older libfastnorm can be loaded, recognised and refused.
# shellcheck disable=SC2046,SC2086,SC2016
${CC:-cc} -std=gnu99 -O2 -fPIC -shared -fvisibility=hidden -fno-strict-aliasing \
  -Wall -Wextra ${CFLAGS:-} -I"$java_home/include" -I"$java_home/include/linux" \
  $(pkg-config --cflags fastnorm) "$sources/wrap.c" \
  -o "$out/libfastnorm_jni.so" -L"$libdir" $(pkg-config --libs fastnorm) -ldl \
  -Wl,-rpath,'$ORIGIN' -Wl,--disable-new-dtags -Wl,-z,lazy -Wl,-z,defs -Wl,--as-needed
echo "$libdir" >"$out/libdir"
if [ "${FASTNORM_BUNDLE:-0}" = 1 ]; then
  cp -L "$libdir/$soname" "$out/$soname"
fi

package fastnorm

import (
	"fmt"

	"github.com/libfastnorm/libfastnorm/bindings/go/internal/raw"
)

// Version returns that of the loaded library as major * 10000 + minor * 100 + patch.
func Version() int { return int(raw.Fastnorm_version()) }

// VersionString returns the version of the loaded library, such as "0.1.0".
func VersionString() string { return raw.Fastnorm_version_string() }

// BuildInfo says what the loaded library contains, one "key: value" line each; for people and logs.
func BuildInfo() string { return raw.Fastnorm_build_info() }

// NumericVersion returns the version of the arithmetic: libraries of one number give the same bits
// for the same call on the same backend.
func NumericVersion() int { return int(raw.Fastnorm_numeric_version()) }

// Kernels lists the kernels of the loaded library, for all devices.
func Kernels() ([]Kernel, error) {
	info := raw.NewFastnorm_kernel_info()
	defer raw.DeleteFastnorm_kernel_info(info)
	found := make([]Kernel, raw.Fastnorm_kernel_count())
	for i := range found {
		describe := func() int32 { return raw.Fastnorm_kernel_describe(int32(i), info) }
		if err := checked(describe); err != nil {
			return nil, err
		}
		found[i] = kernelOf(info)
	}
	return found, nil
}

// checkVersion refuses a library that is older than the headers this package was generated from.
// One of another ABI has another soname and is not loaded at all.
func checkVersion(loaded int32) error {
	if loaded >= raw.FASTNORM_VERSION {
		return nil
	}
	return &Error{
		Status: StatusUnsupported,
		Message: fmt.Sprintf("libfastnorm %s is loaded; required: %s or later", versionText(loaded),
			versionText(raw.FASTNORM_VERSION)),
	}
}

func versionText(version int32) string {
	return fmt.Sprintf("%d.%d.%d", version/10000, version/100%100, version%100)
}

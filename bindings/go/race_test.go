//go:build race

package fastnorm_test

const underRace = true

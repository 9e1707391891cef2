// Prints the documentation of a Go package as a page of Markdown: go run godoc.go FOLDER
package main

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/format"
	"go/parser"
	"go/token"
	"log"
	"os"
	"path/filepath"
	"strings"
)

type page struct {
	files *token.FileSet
	pkg   *doc.Package
}

func (p page) text(comment string, level int) {
	printer := p.pkg.Printer()
	printer.HeadingLevel = level
	printer.DocLinkBaseURL = "https://pkg.go.dev"
	fmt.Printf("%s\n", printer.Markdown(p.pkg.Parser().Parse(comment)))
}

func (p page) code(node ast.Node) {
	fmt.Print("```go\n")
	if err := format.Node(os.Stdout, p.files, node); err != nil {
		log.Fatal(err)
	}
	fmt.Print("\n```\n\n")
}

func (p page) heading(level int, title, anchor string) {
	fmt.Printf("%s %s { #%s }\n\n", strings.Repeat("#", level), title, anchor)
}

func (p page) values(values []*doc.Value) {
	for _, v := range values {
		for _, name := range v.Names {
			if ast.IsExported(name) {
				fmt.Printf("<span id=%q></span>", name)
			}
		}
		fmt.Print("\n\n")
		p.code(v.Decl)
		p.text(v.Doc, 4)
	}
}

// fields prints what a link to a field of a struct leads to.
func (p page) fields(t *doc.Type) {
	for _, spec := range t.Decl.Specs {
		if s, ok := spec.(*ast.TypeSpec).Type.(*ast.StructType); ok {
			for _, field := range s.Fields.List {
				for _, name := range field.Names {
					fmt.Printf("<span id=%q></span>", t.Name+"."+name.Name)
				}
			}
			fmt.Print("\n\n")
		}
	}
}

// functions prints functions or methods; their links have the receiver in front.
func (p page) functions(level int, functions []*doc.Func, receiver string) {
	for _, f := range functions {
		title, anchor := "func "+f.Name, f.Name
		if receiver != "" {
			title, anchor = fmt.Sprintf("func (%s) %s", f.Recv, f.Name), receiver+"."+f.Name
		}
		p.heading(level, title, anchor)
		p.code(f.Decl)
		p.text(f.Doc, level+1)
	}
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: godoc FOLDER")
	}
	paths, err := filepath.Glob(filepath.Join(os.Args[1], "*.go"))
	if err != nil {
		log.Fatal(err)
	}
	files := token.NewFileSet()
	var parsed []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments)
		if err != nil {
			log.Fatal(err)
		}
		parsed = append(parsed, file)
	}
	pkg, err := doc.NewFromFiles(files, parsed, "github.com/libfastnorm/libfastnorm/bindings/go")
	if err != nil {
		log.Fatal(err)
	}
	p := page{files, pkg}
	fmt.Printf("# Go reference\n\n```go\nimport fastnorm %q\n```\n\n", pkg.ImportPath)
	p.text(pkg.Doc, 2)
	p.heading(2, "Constants and variables", "values")
	p.values(pkg.Consts)
	p.values(pkg.Vars)
	p.heading(2, "Functions", "functions")
	p.functions(3, pkg.Funcs, "")
	p.heading(2, "Types", "types")
	for _, t := range pkg.Types {
		p.heading(3, "type "+t.Name, t.Name)
		p.fields(t)
		p.code(t.Decl)
		p.text(t.Doc, 4)
		p.values(t.Consts)
		p.values(t.Vars)
		p.functions(4, t.Funcs, "")
		p.functions(4, t.Methods, t.Name)
	}
}

//! What descriptions share: tensors of a struct of arguments, each with a slot, setters of flags,
//! and lists of parts.

use std::ptr;

/// The most parts of a call whose addresses stay on the stack; the library takes no more.
pub(crate) const PARTS: usize = 8;

/// Declares `Slot` with a name for each tensor of the arguments, their number, and how a
/// description is linked and shown. The description has the fields `args` and `views`.
///
/// `slots! { Type, arguments, scalars, |args, f| what Debug shows of scalars; Slot field, .. }`.
/// `scalars` is the bytes of the arguments that are no tensors.
macro_rules! slots {
    ($type:ident, $arguments:ident, $scalars:literal, |$args:ident, $f:ident| $show:expr;
     $($slot:ident $field:ident),* $(,)?) => {
        #[derive(Clone, Copy)]
        enum Slot {
            $($slot),*
        }

        const SLOTS: usize = [$(Slot::$slot),*].len();

        // Fails when the library gains a tensor, until it has a slot: what is left are scalars.
        const _: () = assert!(
            size_of::<sys::$arguments>() == $scalars + SLOTS * size_of::<*const ()>()
        );

        impl $type<'_> {
            /// Points the arguments at the tensors and these at their shapes, until the description
            /// is moved.
            pub(crate) fn link(&mut self) -> *const sys::$arguments {
                $(self.args.$field = self.views[Slot::$slot as usize]
                    .as_mut()
                    .map_or(std::ptr::null(), |view| view.link());)*
                &self.args
            }

            fn put(mut self, slot: Slot, view: View) -> Self {
                self.views[slot as usize] = Some(view);
                self
            }
        }

        impl std::fmt::Debug for $type<'_> {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut shown = formatter.debug_struct(stringify!($type));
                let ($args, $f) = (&self.args, &mut shown);
                $show;
                $(if let Some(view) = &self.views[Slot::$slot as usize] {
                    shown.field(stringify!($field), view);
                })*
                shown.finish_non_exhaustive()
            }
        }
    };
}

pub(crate) use slots;

/// Declares setters of single flags, which take whether it is on, and `flag`, which sets any. For
/// the `impl` of a description, whose arguments have `flags`.
///
/// `flags! { #[doc = ".."] setter: flag, .. }`.
macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident: $flag:expr),* $(,)?) => {
        $($(#[$doc])*
        pub fn $name(self, on: bool) -> Self {
            self.flag($flag, on)
        })*

        fn flag(mut self, flag: u32, on: bool) -> Self {
            self.args.flags = if on {
                self.args.flags | flag
            } else {
                self.args.flags & !flag
            };
            self
        }
    };
}

pub(crate) use flags;

/// Links all parts and hands the addresses of their arguments, and their count, to `call`.
#[inline]
pub(crate) fn with_linked<P, A, R>(
    parts: &mut [P],
    link: impl Fn(&mut P) -> *const A,
    call: impl FnOnce(*const *const A, i32) -> R,
) -> R {
    let count = i32::try_from(parts.len()).unwrap_or(i32::MAX);
    if parts.len() <= PARTS {
        let mut addresses = [ptr::null(); PARTS];
        for (address, part) in addresses.iter_mut().zip(parts) {
            *address = link(part);
        }
        call(addresses.as_ptr(), count)
    } else {
        let addresses: Vec<_> = parts.iter_mut().map(link).collect();
        call(addresses.as_ptr(), count)
    }
}

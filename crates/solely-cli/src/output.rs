//! What commands print. Whoever reads it may stop at any line (`solely config | head -1`): then the command ends, as
//! other programs do, without a word.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write as _};

/// The exit code of a program that the system ends because nobody reads what it writes.
const NOBODY_READS: i32 = 141;

/// Writes a line to standard output.
pub(crate) fn line(text: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    match out.write_fmt(text).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(NOBODY_READS),
        Err(error) => {
            eprintln!("solely: cannot write to standard output: {error}");
            std::process::exit(1)
        }
        Ok(()) => {}
    }
}

/// [`println!`] for commands.
macro_rules! say {
    () => { $crate::output::line(format_args!("")) };
    ($($what:tt)*) => { $crate::output::line(format_args!($($what)*)) };
}
pub(crate) use say;

//! Tells the task runner what machine it is built for.

fn main() {
    println!("cargo::rustc-env=XTASK_TARGET={}", std::env::var("TARGET").expect("cargo says"));
}

//! Processes to be killed, paused and continued.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use solely_core::fault::{BREAK_ENV, CRASH_ENV};

/// A worker process, killed when dropped.
pub struct Process {
    child: Child,
    /// Until when it is paused.
    pub paused_until: Option<Instant>,
}

impl Process {
    /// Starts a command, with guards that are open and a point at which it dies.
    pub fn start(mut command: Command, broken: &str, crash: Option<&str>) -> Result<Self> {
        command.env(BREAK_ENV, broken).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some(crash) = crash {
            command.env(CRASH_ENV, crash);
        }
        Ok(Self { child: command.spawn()?, paused_until: None })
    }

    /// Ends it as a power cut would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Stops it in the middle of whatever it does.
    pub fn pause(&mut self, until: Instant) {
        self.signal(Signal::SIGSTOP);
        self.paused_until = Some(until);
    }

    /// Lets it go on.
    pub fn go_on(&mut self) {
        self.signal(Signal::SIGCONT);
        self.paused_until = None;
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Asks it to end. False if it had to be killed. One that was told before it could listen, or
    /// that was made to die meanwhile, has ended too.
    pub async fn end(&mut self, patience: Duration) -> bool {
        self.signal(Signal::SIGTERM);
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if self.has_ended() {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.kill();
        false
    }

    fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(0)), signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

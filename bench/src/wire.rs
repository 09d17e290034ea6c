//! A connection that speaks just enough HTTP to cost next to nothing beside what is measured.

use anyhow::{Context as _, Result};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// One connection, for one request after the other.
pub(crate) struct Wire {
    stream: BufReader<TcpStream>,
    line: String,
    body: Vec<u8>,
}

impl Wire {
    pub(crate) async fn connect(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let stream = BufReader::with_capacity(16 * 1024, stream);
        Ok(Self { stream, line: String::new(), body: Vec::new() })
    }

    /// The status and the body that are answered.
    pub(crate) async fn post(&mut self, path: &str, body: &str) -> Result<(u16, &[u8])> {
        self.ask(&format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ))
        .await
    }

    async fn ask(&mut self, request: &str) -> Result<(u16, &[u8])> {
        self.stream.get_mut().write_all(request.as_bytes()).await?;
        let (mut status, mut length) = (None, 0);
        loop {
            self.line.clear();
            self.stream.read_line(&mut self.line).await?;
            if status.is_none() {
                status = self.line.split(' ').nth(1).and_then(|word| word.parse().ok());
            }
            if self.line.trim().is_empty() {
                break;
            }
            let header = self.line.to_ascii_lowercase();
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
        }
        self.body.resize(length, 0);
        self.stream.read_exact(&mut self.body).await?;
        Ok((status.context("no answer")?, &self.body))
    }
}

"use strict";

document.getElementById("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  const why = document.getElementById("why");
  why.textContent = "";
  try {
    const answer = await fetch("/login", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ token: document.getElementById("token").value }),
    });
    if (answer.ok) location.replace("/" + location.hash);
    else why.textContent = (await answer.json()).error;
  } catch (error) {
    why.textContent = "The controller does not answer.";
  }
});

// A page that has figures and nothing else that lives.
import { attach } from "./figures.js";

attach();
